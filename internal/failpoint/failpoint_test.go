package failpoint

import (
	"syscall"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]*point{
		"c3=exit":   {name: "c3", at: 1, sig: syscall.SIGKILL},
		"w2:3=stop": {name: "w2", at: 3, sig: syscall.SIGSTOP},
	} {
		p, err := parse(text)
		if err != nil || p.name != want.name || p.at != want.at || p.sig != want.sig {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
	if p, err := parse(""); p != nil || err != nil {
		t.Errorf("nothing armed: %+v, %v", p, err)
	}
	for _, text := range []string{"c3", "c3=die", "c3:0=exit", "c3:x=exit"} {
		if _, err := parse(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestOnlyTheCountedHitActs(t *testing.T) {
	p, err := parse("w2:2=stop")
	if err != nil {
		t.Fatal(err)
	}
	var got []syscall.Signal
	hit := func(name string) bool {
		return p.hit(name, func(s syscall.Signal) error { got = append(got, s); return nil })
	}
	for i, name := range []string{"w2", "c3", "w2", "w2"} {
		if was := hit(name); was != (i == 2) {
			t.Errorf("hit %d of %s acts: %v", i, name, was)
		}
	}
	if len(got) != 1 || got[0] != syscall.SIGSTOP {
		t.Errorf("signals %v", got)
	}
}

func TestUnarmedIsFree(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Hit("c3") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
