package step

import "strconv"

// parseVersion reads a decimal weight version; ok is false for any other text.
func parseVersion(text string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// parsedVersions remembers the last version read: in a step nearly all are equal.
type parsedVersions struct {
	text string
	n    uint64
	ok   bool
}

func (p *parsedVersions) parse(text string) (uint64, bool) {
	if text != p.text {
		p.text = text
		p.n, p.ok = parseVersion(text)
	}
	return p.n, p.ok
}

// versionRange sums up a sequence of weight versions.
type versionRange struct {
	first    string
	some     bool
	mixed    bool   // more than one version, numbered or not
	numbered bool   // at least one is a number
	oldest   uint64 // the least number
}

func (r *versionRange) add(text string, versions *parsedVersions) {
	if !r.some {
		r.some, r.first = true, text
	} else if text != r.first {
		r.mixed = true
	}
	if n, ok := versions.parse(text); ok && (!r.numbered || n < r.oldest) {
		r.numbered, r.oldest = true, n
	}
}
