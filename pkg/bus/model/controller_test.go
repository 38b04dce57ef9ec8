package model

import (
	"slices"
)

// The run of the model: small enough that a walk sees its end, large enough that
// waves cross steps.
const (
	steps     = 4
	batch     = 2 // groups of a step
	siblings  = 2 // episodes of a group
	maxReruns = 1 // waves that run a group's failed siblings again
)

type entryKind string

const (
	opened    entryKind = "open"
	planned   entryKind = "plan"
	committed entryKind = "manifest"
	consumed  entryKind = "consumed"
	durable   entryKind = "durable"
	rewound   entryKind = "rewind"
	trimmed   entryKind = "trimmed"
	closed    entryKind = "closed"
)

// entry is a record of the log. It carries the whole state after it.
type entry struct {
	kind     entryKind
	nonce    int
	state    state
	plan     *plan
	manifest *manifest
}

// state is where the run stands.
type state struct {
	epoch     int
	nextStep  int
	nextWave  int
	nextGroup int
	cursor    int   // first prompt position never planned
	owed      []int // positions whose groups a rewind made void
	trimmed   int   // waves below it are removed
	void      int   // waves below it count no more, but for steps that are committed
	consumed  int   // the trainer has used the steps below it
	durable   int   // and will never ask for those below this again
	wasteSeen int
	closed    bool
}

type plannedGroup struct{ group, position int }

type rerun struct {
	group    int
	episodes []int
}

// plan is a wave: new groups, and failed siblings of older ones.
type plan struct {
	wave   int
	groups []plannedGroup
	reruns []rerun
}

// jobs lists the wave's jobs: groups with the episodes wanted.
func (p *plan) jobs() []rerun {
	var out []rerun
	for _, g := range p.groups {
		all := make([]int, siblings)
		for i := range all {
			all[i] = i
		}
		out = append(out, rerun{g.group, all})
	}
	return append(out, p.reruns...)
}

// episodeKey names a result.
type episodeKey struct{ wave, group, episode int }

type item struct {
	episodeKey
	seq, digest int
	verdict     string
}

type manifest struct {
	step   int
	items  []item
	groups []int // all groups that the step disposes of
	waste  []int // generations that came to nothing
}

// receipt is the head of a stored result, as the controller read it.
type receipt struct {
	seq, digest int
	failed      bool
}

// controller mirrors internal/controller.Controller on natsbus.Run.
type controller struct {
	*actor
	w *world

	entries  []*entry
	seqs     []int
	state    state
	jobFence int
	resFence int

	cursor   int // of the reader of results
	read     int // crashes of the broker at its last start
	receipts map[episodeKey]receipt
}

// fenced ends the controller: somebody newer has taken over (exit code 3).
func (c *controller) fenced(op string) {
	c.w.note("%s: %s: fenced", c.name, op)
	c.w.seen["controllers fenced"]++
	if c.w.truth.newest == c {
		c.w.violated("%s, the newest controller, is told at %q that there is a newer one", c.name, op)
	}
	panic(errExit)
}

// run is natsbus.OpenRun and Controller.Run.
func (c *controller) run() {
	c.receipts = map[episodeKey]receipt{}
	c.replay()
	s := c.state
	s.epoch++
	s.closed = false
	c.append(&entry{kind: opened, state: s})
	c.refreshFences()
	for c.turn() {
	}
}

// replay is natsbus.Run.replay: it reads the log entry by entry, while another
// controller may shorten it. What stands before a gap does not count.
func (c *controller) replay() {
	for seq := 0; ; {
		var m *message
		c.retry(func() { m = c.w.led.next(seq) })
		if m == nil {
			break
		}
		if n := len(c.seqs); n > 0 && m.seq != c.seqs[n-1]+1 {
			if c.w.flaw == gapIgnored {
				c.w.violated("%s: the log contradicts itself: entry %d after entry %d", c.name, m.seq, c.seqs[n-1])
			}
			c.entries, c.seqs = nil, nil
		}
		c.entries, c.seqs = append(c.entries, m.entry), append(c.seqs, m.seq)
		c.state = m.entry.state
		seq = m.seq
	}
}

func (c *controller) tail() int {
	if len(c.seqs) == 0 {
		return 0
	}
	return c.seqs[len(c.seqs)-1]
}

// append is natsbus.Run.append: compare-and-set on the entry before, and a look
// at the tail's nonce when the write was refused, for an earlier try of ours may
// have been stored.
func (c *controller) append(e *entry) {
	e.nonce = c.w.fresh()
	sub := subject{kind: logEntry}
	seq, _, err := c.publish(&c.w.led, message{subject: sub, entry: e}, &expectation{sub, c.tail()},
		func(int) { c.w.truth.appended(c.w, c, e) })
	if err != nil {
		var last *message
		c.retry(func() { last = c.w.led.lastOf(sub) })
		if last == nil || last.entry.nonce != e.nonce {
			c.fenced("append " + string(e.kind))
		}
		seq = last.seq
	}
	c.entries, c.seqs, c.state = append(c.entries, e), append(c.seqs, seq), e.state
}

// refreshFences is natsbus.Run.refreshFences.
func (c *controller) refreshFences() {
	c.jobFence = c.refreshFence(&c.w.jobs, subject{kind: jobFence})
	c.resFence = c.refreshFence(&c.w.res, subject{kind: resFence})
	c.w.truth.armed = max(c.w.truth.armed, c.state.epoch)
}

// refreshFence is natsbus.Run.refreshFence: it reads the mark, makes sure that the
// log's tail is ours, and replaces the mark if nobody did meanwhile. Who did may
// be a controller that the open entry has fenced already: look again.
func (c *controller) refreshFence(s *stream, sub subject) int {
	for {
		var last, tail int
		c.retry(func() { last = s.lastSeq(sub) })
		c.retry(func() { tail = c.w.led.lastSeq(subject{kind: logEntry}) })
		want := &expectation{sub, last}
		if c.w.flaw == fenceForced {
			want = nil
		} else if tail != c.tail() {
			c.fenced("write " + sub.kind.String())
		}
		nonce := c.w.fresh()
		seq, _, err := c.publish(s, message{subject: sub, nonce: nonce}, want, func(int) {})
		if err != nil {
			var now *message
			c.retry(func() { now = s.lastOf(sub) })
			if now == nil || now.nonce != nonce {
				if c.w.flaw == fenceGivesUp {
					c.fenced("write " + sub.kind.String())
				}
				continue
			}
			seq = now.seq
		}
		c.retry(func() { s.purge(func(m *message) bool { return m.subject == sub && m.seq < seq }) })
		return seq
	}
}

// turn is one round of Controller.steps; false ends the controller.
func (c *controller) turn() bool {
	c.sweep()
	c.serve()
	if below := c.trimmable(); below > c.state.trimmed {
		c.trim(below)
	}
	if c.state.nextStep == steps {
		if c.state.durable < steps {
			c.idle() // waits for the trainer
			return true
		}
		s := c.state
		s.closed = true
		c.append(&entry{kind: closed, state: s})
		// Nobody comes after this one: what a crash has brought back since the last
		// sweep would stay.
		for crashes := -1; crashes != c.seen && c.w.flaw != sweepEarly; {
			crashes = c.seen
			c.sweep()
		}
		return false
	}
	g := c.groups()
	c.plan(g)
	for _, p := range c.open() {
		c.submit(p, g)
	}
	c.collect()
	c.commit()
	return true
}

// idle is a wait in which nothing is written: a controller that was replaced
// would never hear of it unless it looks at the log.
func (c *controller) idle() {
	var tail int
	if c.call(func() { tail = c.w.led.lastSeq(subject{kind: logEntry}) }) == nil && tail != c.tail() && c.w.flaw != idleUnwatched {
		c.fenced("wait")
	}
}

// open lists the plans of waves that count and are not trimmed (rollout.Replay).
func (c *controller) open() (plans []*plan) {
	for _, e := range c.entries {
		if e.plan != nil && e.plan.wave >= c.state.trimmed && e.plan.wave >= c.state.void {
			plans = append(plans, e.plan)
		}
	}
	return plans
}

// group is a group as plans, manifests and receipts show it.
type group struct {
	plannedGroup
	waves    map[int][]int // episodes by episode: the waves that ran it
	reruns   int
	step     int // that disposed of it; -1
	pending  bool
	failed   []int // episodes whose last run failed
	verdicts map[episodeKey]string
}

// groups derives all groups of open waves, by index.
func (c *controller) groups() []*group {
	byIndex := map[int]*group{}
	var order []*group
	for _, p := range c.open() {
		for _, pg := range p.groups {
			g := &group{plannedGroup: pg, waves: map[int][]int{}, step: -1}
			byIndex[pg.group] = g
			order = append(order, g)
		}
		for _, j := range p.jobs() {
			g := byIndex[j.group]
			if g == nil {
				continue // run again here, disposed of, and its first wave is trimmed
			}
			for _, e := range j.episodes {
				g.waves[e] = append(g.waves[e], p.wave)
			}
			g.reruns = max(g.reruns, len(g.waves[j.episodes[0]])-1)
		}
	}
	for _, e := range c.entries {
		if e.manifest != nil {
			for _, index := range e.manifest.groups {
				if g := byIndex[index]; g != nil {
					g.step = e.manifest.step
				}
			}
		}
	}
	for _, g := range order {
		g.judge(c.receipts)
	}
	return order
}

// keys are the group's planned episodes.
func (g *group) keys() (keys []episodeKey) {
	for e := range siblings {
		for _, wave := range g.waves[e] {
			keys = append(keys, episodeKey{wave, g.group, e})
		}
	}
	return keys
}

// judge says what is pending and what failed, and gives every result its verdict
// (step.Dispose).
func (g *group) judge(receipts map[episodeKey]receipt) {
	g.verdicts = map[episodeKey]string{}
	for e := range siblings {
		for i, wave := range g.waves[e] {
			key := episodeKey{wave, g.group, e}
			r, ok := receipts[key]
			switch {
			case !ok:
				g.pending = true
			case i < len(g.waves[e])-1:
				g.verdicts[key] = "discarded(run again)"
			case r.failed:
				g.failed = append(g.failed, e)
				g.verdicts[key] = "discarded(failed)"
			default:
				g.verdicts[key] = "accepted"
			}
		}
	}
	if len(g.failed) > 0 {
		for key, v := range g.verdicts {
			if v == "accepted" {
				g.verdicts[key] = "discarded(short)"
			}
		}
	}
}

// rerunnable groups wait for another wave; lost ones are to be disposed of as
// they are; good ones are what a step is made of.
func (g *group) rerunnable() bool {
	return g.step < 0 && !g.pending && len(g.failed) > 0 && g.reruns < maxReruns
}
func (g *group) lost() bool {
	return g.step < 0 && !g.pending && len(g.failed) > 0 && g.reruns == maxReruns
}
func (g *group) good() bool { return g.step < 0 && !g.pending && len(g.failed) == 0 }

// plan is Controller.wave: what the next step lacks, a surplus, and the failed
// siblings of groups that have a try left.
func (c *controller) plan(groups []*group) {
	p := &plan{wave: c.state.nextWave}
	live := 0
	for _, g := range groups {
		if g.step < 0 && !g.lost() {
			live++
		}
		if g.rerunnable() {
			p.reruns = append(p.reruns, rerun{g.group, g.failed})
		}
	}
	want := batch
	if !c.w.calm {
		want += c.w.n(batch + 1) // planned ahead, or surplus
	}
	s := c.state
	s.owed = slices.Clone(s.owed)
	for ; live < want && (live < batch || !c.w.calm); live++ {
		position := s.cursor
		if len(s.owed) > 0 {
			position, s.owed = s.owed[0], s.owed[1:]
		} else {
			s.cursor++
		}
		p.groups = append(p.groups, plannedGroup{s.nextGroup, position})
		s.nextGroup++
	}
	if len(p.groups)+len(p.reruns) == 0 {
		return
	}
	s.nextWave++
	c.append(&entry{kind: planned, state: s, plan: p})
}

// submit is natsbus.Run.Submit, for the jobs of groups that no step has disposed
// of.
func (c *controller) submit(p *plan, groups []*group) {
	var stored map[subject]bool
	var queued map[subject]bool
	list := func(s *stream) (found map[subject]bool) {
		found = map[subject]bool{}
		for _, m := range s.msgs {
			if m.subject.ofWave() && m.subject.wave == p.wave {
				found[m.subject] = true
			}
		}
		return found
	}
	c.retry(func() { stored = list(&c.w.res) })
	c.retry(func() { queued = list(&c.w.jobs) })
	jobs := slices.DeleteFunc(p.jobs(), func(j rerun) bool {
		return slices.ContainsFunc(groups, func(g *group) bool { return g.group == j.group && g.step >= 0 })
	})
	for _, j := range jobs {
		sub := subject{kind: mark, wave: p.wave, group: j.group}
		if !stored[sub] {
			c.first(&c.w.res, message{subject: sub}, subject{kind: resFence}, &c.resFence)
		}
	}
	for _, j := range jobs {
		sub := subject{kind: job, wave: p.wave, group: j.group}
		complete := !slices.ContainsFunc(j.episodes, func(e int) bool {
			return !stored[subject{result, p.wave, j.group, e}]
		})
		if !complete && !queued[sub] {
			c.first(&c.w.jobs, message{subject: sub, episodes: j.episodes}, subject{kind: jobFence}, &c.jobFence)
		}
	}
}

// first writes a group's first lease mark or its job under a fence. When it is
// refused, the log tells whether somebody has taken over; if not, a damaged block
// took the fence, and it is written again.
func (c *controller) first(s *stream, m message, fence subject, seq *int) {
	m.id = m.subject.String()
	if c.w.flaw != idPerEpoch {
		m.id += string(rune(c.w.fresh())) // repeats are recognised within one call only
	}
	for {
		want := expectation{fence, *seq}
		if c.w.flaw == expectZero {
			want = expectation{m.subject, 0}
		}
		_, _, err := c.publish(s, m, &want, func(int) { c.w.truth.submitted(c.w, c, m.subject) })
		if err == nil || c.w.flaw == expectZero { // "it is there"
			return
		}
		if c.w.flaw == fenceForced {
			c.fenced("write " + m.subject.String())
		}
		c.refreshFences()
	}
}

// collect is natsbus.Run.Follow and Controller.take: it reads heads from the first
// on, again after each restart of the broker, and the first one of an episode
// counts.
func (c *controller) collect() {
	if c.read != c.seen && c.w.flaw != cursorTrusted {
		c.cursor, c.read = 0, c.seen
	}
	for range 4 {
		var m *message
		if c.call(func() { m = c.w.res.next(c.cursor) }) != nil {
			return
		}
		if m == nil {
			return
		}
		c.cursor = m.seq
		key := episodeKey{m.subject.wave, m.subject.group, m.subject.episode}
		if _, known := c.receipts[key]; m.subject.kind == result && !known && key.wave >= c.state.void {
			c.receipts[key] = receipt{m.seq, m.digest, m.failed}
		}
	}
}

// commit is Controller.step from load to Commit: when enough groups are good it
// reads and checks their results, and appends the manifest. The last step
// disposes of all that is left.
func (c *controller) commit() {
	groups := c.groups()
	var chosen []*group
	good := 0
	for _, g := range groups {
		if g.good() && good < batch {
			good++
			chosen = append(chosen, g)
		} else if g.lost() {
			chosen = append(chosen, g)
		}
	}
	if good < batch {
		return
	}
	m := &manifest{step: c.state.nextStep}
	for _, g := range chosen {
		m.groups = append(m.groups, g.group)
		for _, key := range g.keys() {
			r := c.receipts[key]
			digest, ok := c.load(key, r)
			if !ok {
				c.w.seen["a result was another"]++
				// A damaged block: what the sequence names is another message now.
				// Forget what was read and look again.
				clear(c.receipts)
				if c.w.flaw != cursorTrusted {
					c.cursor = 0
				}
				return
			}
			m.items = append(m.items, item{key, r.seq, digest, g.verdicts[key]})
		}
	}
	if m.step == steps-1 {
		for _, g := range groups {
			if g.step < 0 && !slices.Contains(chosen, g) {
				m.groups = append(m.groups, g.group)
				for _, key := range g.keys() {
					m.items = append(m.items, item{episodeKey: key, verdict: "surplus"})
				}
			}
		}
	}
	s := c.state
	m.waste, s.wasteSeen = c.waste(s.wasteSeen)
	s.nextStep++
	c.append(&entry{kind: committed, state: s, manifest: m})
}

// load is natsbus.Run.Load: it reads a result by its sequence and compares its
// digest with the receipt's.
func (c *controller) load(key episodeKey, r receipt) (digest int, ok bool) {
	var m *message
	c.retry(func() { m = c.w.res.at(r.seq) })
	if m == nil {
		return 0, false
	}
	same := m.subject == subject{result, key.wave, key.group, key.episode} && m.digest == r.digest
	return m.digest, same || c.w.flaw == notVerified
}

// waste is natsbus.Run.Waste.
func (c *controller) waste(behind int) (digests []int, last int) {
	for {
		var found *message
		c.retry(func() {
			for m := c.w.res.next(behind); m != nil; m = c.w.res.next(m.seq) {
				if m.subject.kind == waste {
					found = m
					return
				}
			}
			found = nil
		})
		if found == nil {
			return digests, behind
		}
		digests = append(digests, found.digest)
		behind = found.seq
	}
}

// trimmable is the first wave that may still be asked for: by a step not yet
// committed, or by a trainer that goes back to its last checkpoint.
func (c *controller) trimmable() int {
	limit := c.state.durable
	if c.w.flaw == trimAtCommit {
		limit = c.state.nextStep
	}
	held := map[int]bool{}
	for _, g := range c.groups() {
		if g.step < 0 || g.step >= limit {
			for _, waves := range g.waves {
				for _, wave := range waves {
					held[wave] = true
				}
			}
		}
	}
	below := c.state.trimmed
	for below < c.state.nextWave && !held[below] {
		below++
	}
	return below
}

// trim is natsbus.Run.Trim: purge, say so, refresh the fences, shorten the log.
func (c *controller) trim(below int) {
	for wave := c.state.trimmed; wave < below; wave++ {
		c.purge(func(m *message) bool { return m.subject.ofWave() && m.subject.wave == wave })
	}
	s := c.state
	s.trimmed = below
	c.append(&entry{kind: trimmed, state: s})
	for key := range c.receipts {
		if key.wave < below {
			delete(c.receipts, key)
		}
	}
	c.retry(func() {
		c.w.res.purge(func(m *message) bool { return m.subject.kind == waste && m.seq <= c.state.wasteSeen })
	})
	c.refreshFences()
	c.compact()
}

func (c *controller) purge(match func(*message) bool) {
	for _, s := range []*stream{&c.w.res, &c.w.jobs} {
		c.retry(func() { c.w.truth.purged(c.w, c, s.purge(match)) })
	}
}

// compact is natsbus.Run.compact.
func (c *controller) compact() {
	first := len(c.entries) - 1
	for i, e := range c.entries {
		if e.plan != nil && e.plan.wave >= max(c.state.trimmed, c.state.void) {
			first = i
			break
		}
	}
	seq := c.seqs[first]
	c.retry(func() { c.w.led.purge(func(m *message) bool { return m.seq < seq }) })
	c.entries, c.seqs = c.entries[first:], c.seqs[first:]
}

// sweep removes again what was trimmed and is back.
func (c *controller) sweep() {
	if c.w.flaw == noSweep {
		return
	}
	below := c.state.trimmed
	back := false
	for _, s := range []*stream{&c.w.res, &c.w.jobs} {
		c.retry(func() {
			back = back || slices.ContainsFunc(s.msgs, func(m *message) bool { return m.subject.ofWave() && m.subject.wave < below })
		})
	}
	if back {
		c.w.seen["swept"]++
		c.purge(func(m *message) bool { return m.subject.ofWave() && m.subject.wave < below })
	}
}

// serve answers a request of the trainer's. It may come again after it was
// executed, for its answer may be lost.
func (c *controller) serve() {
	r := c.w.request
	if r == nil {
		return
	}
	s := c.state
	switch r.kind {
	case consumed:
		s.consumed = max(s.consumed, r.step)
	case durable:
		s.durable = max(s.durable, r.step)
		s.consumed = max(s.consumed, r.step)
	case rewound:
		s.durable, s.consumed = max(s.durable, r.step), r.step
		if !r.replay {
			s.owed = c.voided(r.step)
			s.nextStep = r.step
			s.void = s.nextWave
		}
	}
	if !s.same(c.state) {
		c.append(&entry{kind: r.kind, state: s})
		for key := range c.receipts {
			if key.wave < s.void {
				delete(c.receipts, key)
			}
		}
	}
	c.pause() // the answer travels, and may be lost
	if c.w.request == r && (c.w.calm || c.w.n(8) > 0) {
		c.w.note("%s: answered %s %d", c.name, r.kind, r.step)
		r.done = true
		c.w.request = nil
	}
}

// voided are the prompt positions that a rewind to step gives back: those owed
// already, and those of the groups of later steps and of none.
func (c *controller) voided(step int) []int {
	owed := slices.Clone(c.state.owed)
	if c.w.flaw == rewindForgets {
		return owed
	}
	for _, g := range c.groups() {
		if g.step < 0 || g.step >= step {
			owed = append(owed, g.position)
		}
	}
	slices.Sort(owed)
	return owed
}

func (s state) same(o state) bool {
	return s.epoch == o.epoch && s.nextStep == o.nextStep && s.consumed == o.consumed && s.durable == o.durable && s.void == o.void
}
