package worker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestNoJobIsLeasedWhileAnEpisodeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		s := newSlots(2)
		room := func() bool {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return s.room(short)
		}
		if !room() {
			t.Fatal("an idle worker has no room")
		}
		s.add(3)
		if room() {
			t.Error("room with three episodes due and two slots")
		}
		for range 2 {
			if !s.take(ctx) {
				t.Fatal("no slot")
			}
		}
		third := make(chan bool)
		go func() { third <- s.take(ctx) }()
		synctest.Wait()
		s.release()
		if !<-third {
			t.Error("the third episode got no slot")
		}
		if room() {
			t.Error("room with two episodes running in two slots")
		}
		s.release()
		if !room() {
			t.Error("no room with one of two slots free")
		}
		s.release()
	})
}

func TestTakeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		s.add(2)
		if !s.take(t.Context()) {
			t.Fatal("no slot")
		}
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan bool)
		go func() { got <- s.take(ctx) }()
		synctest.Wait()
		cancel()
		if <-got {
			t.Error("a slot that was not free")
		}
		s.drop(1)
		s.release()
		if !s.room(t.Context()) {
			t.Error("the slot did not come back")
		}
	})
}
