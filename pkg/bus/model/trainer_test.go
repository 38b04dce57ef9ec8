package model

// request is what the trainer asks of whichever controller answers.
type request struct {
	kind   entryKind
	step   int
	replay bool
	done   bool
}

// trainer trains the steps in order, saves checkpoints, dies, and goes back to
// the last one. Its checkpoint is the authority.
type trainer struct {
	checkpoint int // steps below it are in the checkpoint
	trained    []*manifest
	crashed    bool
}

func (tr *trainer) run(a *actor) {
	w := a.w
	if tr.crashed {
		// Its own memory is gone; a request of the dead process is not repeated.
		tr.crashed = false
		lost := tr.trained[tr.checkpoint:]
		tr.trained = tr.trained[:tr.checkpoint:tr.checkpoint]
		replay := w.calm || w.n(2) == 0
		tr.ask(a, &request{kind: rewound, step: tr.checkpoint, replay: replay})
		if replay {
			for i, m := range lost {
				if n := tr.checkpoint + i; n < len(w.truth.steps) && w.truth.steps[n] != m && !w.truth.damaged {
					w.violated("the replayed step %d is another than before", n)
				}
			}
		}
	}
	for {
		a.pause()
		if n := len(tr.trained); n < len(w.truth.steps) {
			tr.trained = append(tr.trained, w.truth.steps[n])
			tr.ask(a, &request{kind: consumed, step: n + 1})
			if w.calm || w.n(3) == 0 {
				tr.save(a)
			}
		}
		if w.calm && tr.checkpoint < len(tr.trained) {
			tr.save(a)
		}
	}
}

// save writes a checkpoint and says so.
func (tr *trainer) save(a *actor) {
	tr.checkpoint = len(tr.trained)
	tr.ask(a, &request{kind: durable, step: tr.checkpoint})
}

// ask repeats a request until it is answered.
func (tr *trainer) ask(a *actor, r *request) {
	a.w.note("trainer asks: %s %d, replay %v", r.kind, r.step, r.replay)
	for !r.done {
		a.w.request = r
		a.pause()
	}
}
