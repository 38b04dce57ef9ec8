package model

import "slices"

// worker mirrors internal/worker.Worker on natsbus.Member, one job at a time.
type worker struct {
	*actor
	w     *world
	holds int // sequence of the job whose lease it keeps alive; 0
}

// run is Worker.Run: it leases and works.
func (k *worker) run() {
	for {
		var msg *message
		if k.call(func() { msg = k.pull() }) == nil && msg != nil {
			k.work(msg)
		}
		k.holds = 0
	}
}

// pull is natsbus.Member.pull: any job that nobody is thought to hold.
func (k *worker) pull() *message {
	var free []*message
	for _, m := range k.w.jobs.msgs {
		if m.subject.kind == job && !m.pending {
			free = append(free, m)
		}
	}
	if len(free) == 0 {
		return nil
	}
	m := free[0]
	if !k.w.calm {
		m = free[k.w.n(len(free))]
	}
	m.pending, m.holder = true, k
	m.tries++
	k.holds = m.seq
	copied := *m
	k.w.note("%s: leased %v, delivery %d", k.name, m.subject, m.tries)
	return &copied
}

// work is natsbus.Member.claim, Worker.work and lease.Done.
func (k *worker) work(msg *message) {
	seq, lease, ok := k.mark(msg)
	if !ok {
		return
	}
	wanted := k.missing(msg)
	for _, e := range wanted {
		k.pause() // the engine runs
		if !k.w.calm && k.w.n(30) == 0 {
			k.release(msg)
			return
		}
		run := k.w.fresh()
		m := message{
			subject: subject{result, msg.subject.wave, msg.subject.group, e}, id: string(rune(run)), digest: run,
			failed: !k.w.calm && k.w.n(3) == 0,
		}
		want := &expectation{subject{kind: mark, wave: msg.subject.wave, group: msg.subject.group}, seq}
		switch k.w.flaw {
		case markNotChecked, attemptByDelivery:
			want = nil
		case expectZero:
			want = &expectation{m.subject, 0}
		}
		_, unsure, err := k.publish(&k.w.res, m, want, func(seq int) { k.w.truth.stored(k.w, k, lease, m, seq) })
		if err != nil {
			k.w.seen["results fenced"]++
			if !unsure || k.w.flaw == wasteAfterLostPut {
				k.waste(run)
			}
			return
		}
	}
	k.retry(func() { k.remove(msg) }) // not fenced: an ack of a stale holder counts
}

// mark is lease.writeMark: the next lease mark, by compare-and-set. lease is the
// mark's nonce.
func (k *worker) mark(msg *message) (seq, lease int, ok bool) {
	sub := subject{kind: mark, wave: msg.subject.wave, group: msg.subject.group}
	if k.w.flaw == attemptByDelivery {
		m := message{subject: sub, attempt: msg.tries, nonce: k.w.fresh()}
		k.w.truth.leased(k.w, k, m)
		return 0, m.nonce, true
	}
	var last *message
	k.retry(func() { last = k.w.res.lastOf(sub) })
	if last == nil {
		if k.w.flaw != firstMarkPerLease {
			k.retry(func() { k.remove(msg) }) // terminated: its wave is trimmed
			return 0, 0, false
		}
		last = &message{}
	}
	m := message{subject: sub, attempt: last.attempt + 1, nonce: k.w.fresh()}
	seq, _, err := k.publish(&k.w.res, m, &expectation{sub, last.seq}, func(int) { k.w.truth.leased(k.w, k, m) })
	if err != nil {
		var now *message
		k.retry(func() { now = k.w.res.lastOf(sub) })
		if now == nil || now.nonce != m.nonce {
			return 0, 0, false // somebody was faster
		}
		seq = now.seq
	}
	return seq, m.nonce, true
}

// missing lists the episodes that have no result yet. After our mark nobody else
// can add one.
func (k *worker) missing(msg *message) []int {
	var wanted []int
	k.retry(func() {
		wanted = slices.DeleteFunc(slices.Clone(msg.episodes), func(e int) bool {
			return k.w.res.lastOf(subject{result, msg.subject.wave, msg.subject.group, e}) != nil
		})
	})
	return wanted
}

func (k *worker) remove(msg *message) {
	k.w.jobs.purge(func(m *message) bool { return m.seq == msg.seq && m.subject == msg.subject })
}

// release is lease.Release: sent once, without an answer.
func (k *worker) release(msg *message) {
	_ = k.call(func() {
		if m := k.w.jobs.at(msg.seq); m != nil && m.subject == msg.subject {
			m.pending, m.holder = false, nil
		}
	})
}

// waste is lease.Waste, tried once: a second record of a generation would count
// it twice.
func (k *worker) waste(run int) {
	_ = k.call(func() {
		if _, _, err := k.w.res.publish(message{subject: subject{kind: waste}, digest: run, id: "waste" + string(rune(run))}, nil); err != nil {
			k.w.violated("waste refused: %v", err)
		}
	})
}
