package jinja

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzTemplate checks that no template makes the engine panic or run away.
func FuzzTemplate(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("..", "templates", "*.jinja"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(source))
	}
	for _, c := range goldenCases(f) {
		f.Add(c.Template)
	}
	messages, err := FromJSON([]byte(`[{"role":"user","content":"hi"},{"role":"assistant","content":"x","tool_calls":[
		{"function":{"name":"f","arguments":{"a":1,"b":[1.5,null,true]}}}]},{"role":"tool","content":[{"type":"text","text":"y"}]}]`))
	if err != nil {
		f.Fatal(err)
	}
	vars := NewDict(4)
	vars.Set("messages", messages)
	vars.Set("tools", nil)
	vars.Set("n", int64(3))
	vars.Set("s", "Text with ümlaut")
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		if err != nil {
			return
		}
		first, err1 := tmpl.Render(vars, Options{MaxSteps: 20000, MaxOutput: 1 << 20})
		second, err2 := tmpl.Render(vars, Options{MaxSteps: 20000, MaxOutput: 1 << 20})
		if first != second || (err1 == nil) != (err2 == nil) {
			t.Fatalf("rendered %q, %v and then %q, %v", first, err1, second, err2)
		}
	})
}

// FuzzJSON checks that what is read as JSON is written as JSON that reads the same.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0.0,1e400,123456789012345678901234567890,"\ud83d\ude00\u0000"],"a":null}`, `[NaN,Infinity]`, `"\ud800"`, `[`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := FromJSON(data)
		if err != nil {
			return
		}
		w := func(v Value) string {
			out, err := toJSON(&runtime{steps: 1 << 20, maxOutput: 1 << 24}, v, args{})
			if err != nil {
				return err.Error()
			}
			return out.(string)
		}
		text := w(v)
		again, err := FromJSON([]byte(text))
		if err != nil {
			if len(text) > 0 && (text[0] == 'V' || text[0] == 't') { // beyond the limits of writing
				return
			}
			t.Fatalf("%q is written as %q: %v", data, text, err)
		}
		if second := w(again); second != text {
			t.Fatalf("%q and then %q", text, second)
		}
	})
}
