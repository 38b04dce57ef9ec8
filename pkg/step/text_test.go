package step

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestRepetition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) string {
		out := make([]rune, n)
		for i := range out {
			out[i] = 'a' + rune(rng.IntN(26))
		}
		return string(out)
	}
	tests := []struct {
		name string
		text string
		want bool
	}{
		{"empty", "", false},
		{"10,000 characters are too short", strings.Repeat("ab", 5000), false},
		{"10,001 characters", strings.Repeat("ab", 5000) + "a", true},
		{"characters, not bytes", strings.Repeat("é", 9000), false},
		{"many-byte characters", strings.Repeat("漢字", 6000), true},
		{"random", random(20_000), false},
		{"only the end counts: it repeats", random(20_000) + strings.Repeat("again ", 2000), true},
		{"only the end counts: it does not", strings.Repeat("again ", 2000) + random(10_000), false},
		{"a tenth is not enough", strings.Repeat(random(2500), 5), false},
	}
	var r repetition
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := r.in(tt.text); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func BenchmarkRepetition(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("the sum of two odd numbers is even because each leaves one so therefore we write = + 12 7 x")
	var text strings.Builder
	for text.Len() < 40_000 {
		text.WriteString(words[rng.IntN(len(words))] + " ")
	}
	b.SetBytes(repetitionWindow)
	var r repetition
	for b.Loop() {
		r.in(text.String())
	}
}

func TestMembersAreThoseOfTheObject(t *testing.T) {
	value := rapid.SampledFrom([]string{`1`, `-1.5e3`, `"a\"]},"`, `null`, `true`, `[]`, `[1, {"a":"}"}]`, `{"x":[2,"\\"]}`, `""`})
	key := rapid.SampledFrom([]string{"a", "b\\\"c", "exit_status", "é", `\u0041`})
	space := rapid.SampledFrom([]string{"", " ", "\n\t"})
	rapid.Check(t, func(t *rapid.T) {
		var text bytes.Buffer
		text.WriteString(space.Draw(t, "s") + "{")
		for i := range rapid.IntRange(0, 4).Draw(t, "n") {
			if i > 0 {
				text.WriteByte(',')
			}
			text.WriteString(space.Draw(t, "s") + `"` + key.Draw(t, "key") + `"` + space.Draw(t, "s") + ":" + space.Draw(t, "s") + value.Draw(t, "value") + space.Draw(t, "s"))
		}
		text.WriteString("}" + space.Draw(t, "s"))
		want, got := map[string]json.RawMessage{}, map[string]json.RawMessage{}
		if err := json.Unmarshal(text.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		members(text.Bytes(), func(key, value []byte) { got[string(key)] = bytes.Clone(value) })
		if !reflect.DeepEqual(got, want) {
			t.Errorf("members of %s: %s, want %s", text.Bytes(), got, want)
		}
	})
}

func FuzzMembers(f *testing.F) {
	f.Add([]byte(`{"a":[1,2],"b":"c"}`))
	f.Add([]byte(`{"a":"\`))
	f.Fuzz(func(_ *testing.T, object []byte) {
		members(object, func(_, value []byte) { _ = text(value) })
	})
}

func TestStringsSurviveEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.String().Draw(t, "text")
		var got string
		if err := json.Unmarshal(appendString(nil, want), &got); err != nil || got != want {
			t.Errorf("%q came back as %q, %v", want, got, err)
		}
	})
}
