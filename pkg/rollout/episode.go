package rollout

import "encoding/json"

// Prompt is one row of a prompt source.
type Prompt struct {
	// Source names the data set, Row the row in it, from 0.
	Source string
	Row    int64
	// Text is the prompt where the row holds plain text; Messages where it holds
	// a conversation. One of them is set.
	Text     string
	Messages []Message
	// Tools are the tool definitions, as JSON.
	Tools []json.RawMessage
	// Label and Metadata are JSON as the row had them; nil when it had none.
	Label    json.RawMessage
	Metadata json.RawMessage
}

// Size is how many bytes the row adds to a job that travels, with room for the
// encoding of its lists.
func (p Prompt) Size() int {
	const perEntry = 32
	n := len(p.Text) + len(p.Label) + len(p.Metadata)
	for _, m := range p.Messages {
		n += len(m.Role) + len(m.Raw) + perEntry
	}
	for _, t := range p.Tools {
		n += len(t) + perEntry
	}
	return n
}

// LabelText is the label as text: a JSON string's content, any other value's JSON.
func (p Prompt) LabelText() string { return RawText(p.Label) }

// RawText is a JSON value as text: a string's content, any other value's JSON,
// "" for none.
func RawText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

// Outcome is how an episode ended; each episode has exactly one.
type Outcome string

// Outcomes of an episode.
const (
	OutcomeCompleted Outcome = "completed"
	OutcomeTruncated Outcome = "truncated"
	OutcomeAborted   Outcome = "aborted"
	OutcomeFailed    Outcome = "failed"
)

// OutcomeOf is the outcome of an episode whose last sample has the status.
func OutcomeOf(s Status) Outcome {
	switch s {
	case StatusCompleted:
		return OutcomeCompleted
	case StatusTruncated:
		return OutcomeTruncated
	case StatusAborted:
		return OutcomeAborted
	default:
		return OutcomeFailed
	}
}

// EpisodeID names an episode in a run.
type EpisodeID struct {
	Wave  int64
	Group int64
	// Index numbers the episodes of a group from 0.
	Index int
}

// Episode is one attempt to answer a prompt, ended.
type Episode struct {
	ID EpisodeID
	// RolloutID is shared by the episode's samples.
	RolloutID int64
	// Attempt is the lease attempt that ran it, Worker who did.
	Attempt int
	Worker  string

	Outcome Outcome
	// Failure is set exactly when Outcome is failed.
	Failure *Failure
	// Samples are what can be trained on; empty when the episode failed.
	Samples []*Sample
	// Generations records every engine call, failed ones included, once each.
	Generations []GenerationRecord

	Timing Timing
}

// Timing is where an episode's time went, in seconds.
type Timing struct {
	Total      float64
	Generation float64
	Reward     float64
}

// CompletionTokens sums the completion tokens that the engines reported; of a
// generation that reported none it takes the number of ids received.
func (e *Episode) CompletionTokens() int64 {
	var n int64
	for _, g := range e.Generations {
		n = Add(n, g.Completion())
	}
	return n
}

// Completion is the number of tokens the call cost: what the engine counted, or
// the ids received where it did not count.
func (g *GenerationRecord) Completion() int64 {
	if g.Meta.CompletionTokens != nil {
		return *g.Meta.CompletionTokens
	}
	return int64(g.OutputLen)
}

// Waste is what an attempt generated in vain: its records reach the books though
// no result carries them.
type Waste struct {
	Episode EpisodeID
	Attempt int
	Worker  string
	// Reason is a short snake_case word, such as "fenced".
	Reason      string
	Generations []GenerationRecord
}

// Verdict is what became of an episode.
type Verdict string

// Verdicts.
const (
	Accepted  Verdict = "accepted"
	Filtered  Verdict = "filtered"
	Surplus   Verdict = "surplus"
	Recycled  Verdict = "recycled"
	Discarded Verdict = "discarded"
)

// Disposition is a verdict with its reason; accepted, surplus and recycled need
// none.
type Disposition struct {
	Verdict Verdict
	Reason  string
}

func (d Disposition) String() string {
	if d.Reason == "" {
		return string(d.Verdict)
	}
	return string(d.Verdict) + "(" + d.Reason + ")"
}

// Group is one prompt and its episodes, complete and in order of index.
type Group struct {
	Wave  int64
	Index int64
	// Want is the number of episodes planned.
	Want     int
	Prompt   Prompt
	Episodes []Episode
	// Dispositions has one entry for each episode, in the same order.
	Dispositions []Disposition
}
