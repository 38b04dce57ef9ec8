package jsonscan

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestSkipAgreesWithEncodingJSON(t *testing.T) {
	for _, text := range []string{`{}`, `[]`, `{"a":[1,-2.5e+3,"x\n\u00e9",null,true,false]}`, ` [ 1 , 2 ] `, `"\ud83d\ude00"`, `0`, `-0.0`,
		``, `{`, `[1,]`, `{"a"}`, `{"a":}`, `{a:1}`, `01`, `1.`, `.5`, `1e`, `"a`, `"\x"`, `"\u12"`, "\"\n\"", `tru`, `nul`, `[1] 2`, `+1`, `--1`, `{"a":1,}`, `'a'`} {
		r := NewReader([]byte(text))
		err := r.Skip()
		if err == nil {
			err = r.End()
		}
		if want := json.Valid([]byte(text)); (err == nil) != want {
			t.Errorf("%q: %v, encoding/json says %v", text, err, want)
		}
		var syntax *SyntaxError
		if err != nil && !errors.As(err, &syntax) {
			t.Errorf("%q: the error %v has no place", text, err)
		}
	}
}

func TestValues(t *testing.T) {
	r := NewReader([]byte(`{"z":"a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\ud800x","a":[12,-Infinity,NaN],"b":true,"n":null,"raw":{"k": [1, 2]}}`))
	var keys []string
	err := r.Object(func(key string) error {
		keys = append(keys, key)
		switch key {
		case "z":
			s, err := r.String()
			if want := "a\"\\/\b\f\n\r\té😀\uFFFDx"; s != want {
				t.Errorf("string %q, want %q", s, want)
			}
			return err
		case "a":
			var numbers []string
			err := r.Array(func() error {
				n, err := r.Number()
				numbers = append(numbers, n)
				return err
			})
			if got := strings.Join(numbers, " "); got != "12 -Infinity NaN" {
				t.Errorf("numbers %s", got)
			}
			return err
		case "b":
			b, err := r.Bool()
			if !b {
				t.Error("true is false")
			}
			return err
		case "raw":
			raw, err := r.Raw()
			if string(raw) != `{"k": [1, 2]}` {
				t.Errorf("raw %s", raw)
			}
			return err
		}
		return r.Skip()
	})
	if err != nil || strings.Join(keys, " ") != "z a b n raw" {
		t.Errorf("keys %v, %v", keys, err)
	}
}

func TestDepthIsLimited(t *testing.T) {
	if err := NewReader([]byte(strings.Repeat("[", 1e6))).Skip(); err == nil {
		t.Error("a million brackets are read")
	}
}
