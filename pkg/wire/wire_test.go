package wire_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
	"github.com/sheaf-rl/sheaf/pkg/wire"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

func newCodec(t testing.TB) *wire.Codec {
	t.Helper()
	c, err := wire.New()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// filler fills every exported field it can reach with a value that is not its
// zero, a different one each time, so that a field lost on the way is seen.
type filler struct{ n int64 }

func (f *filler) fill(t *testing.T, v reflect.Value) {
	t.Helper()
	f.n++
	switch v.Interface().(type) {
	case json.RawMessage:
		v.SetBytes([]byte(`{"n":` + string(rune('0'+f.n%10)) + `}`))
		return
	case *rollout.Sample:
		v.Set(reflect.ValueOf(f.sample(t)))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(f.n)
	case reflect.Uint64, reflect.Uint8:
		v.SetUint(uint64(f.n % 256))
	case reflect.Float64, reflect.Float32:
		v.SetFloat(float64(f.n) + 0.5)
	case reflect.String:
		v.SetString("s" + string(rune('a'+f.n%26)))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			f.fill(t, v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			f.fill(t, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, val := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(t, key)
		f.fill(t, val)
		v.SetMapIndex(key, val)
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				t.Fatalf("%s.%s cannot be filled: give its type a state", v.Type(), v.Type().Field(i).Name)
			}
			f.fill(t, v.Field(i))
		}
	default:
		t.Fatalf("no filling for %s", v.Type())
	}
}

// sample returns a sample whose state has every field set and that passes the
// checks of RestoreSample.
func (f *filler) sample(t *testing.T) *rollout.Sample {
	t.Helper()
	var st rollout.SampleState
	f.fill(t, reflect.ValueOf(&st).Elem())
	st.PromptLen = 1
	st.Tokens = []int32{7, 8, 9}
	st.LossMask = []byte{1, 0}
	st.LogProbs = []float32{-0.5, -1.25}
	st.Versions = []rollout.VersionSpan{{Version: "3", Start: 0, End: 1}, {Version: "4", Start: 1, End: 2}}
	s, err := rollout.RestoreSample(st)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func filled[T any](t *testing.T) T {
	t.Helper()
	var v T
	(&filler{}).fill(t, reflect.ValueOf(&v).Elem())
	return v
}

// records are all wire types: each encodes a filled value and reads it back.
func records(c *wire.Codec) []struct {
	name string
	run  func(t *testing.T) (enc []byte, want, got any)
} {
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	return []struct {
		name string
		run  func(t *testing.T) (enc []byte, want, got any)
	}{
		{"job", func(t *testing.T) ([]byte, any, any) {
			want := filled[rollout.Job](t)
			enc, err := c.EncodeJob(want)
			must(t, err)
			got, err := c.DecodeJob(enc)
			must(t, err)
			return enc, want, got
		}},
		{"mark", func(t *testing.T) ([]byte, any, any) {
			want := filled[wire.LeaseMark](t)
			enc, err := c.EncodeMark(want)
			must(t, err)
			got, err := c.DecodeMark(enc)
			must(t, err)
			return enc, want, got
		}},
		{"waste", func(t *testing.T) ([]byte, any, any) {
			want := filled[rollout.Waste](t)
			enc, err := c.EncodeWaste(want)
			must(t, err)
			got, err := c.DecodeWaste(enc)
			must(t, err)
			return enc, want, got
		}},
		{"entry", func(t *testing.T) ([]byte, any, any) {
			want := filled[rollout.LedgerEntry](t)
			enc, err := c.EncodeEntry(want)
			must(t, err)
			got, err := c.DecodeEntry(enc)
			must(t, err)
			return enc, want, got
		}},
		{"episode", func(t *testing.T) ([]byte, any, any) {
			want := filled[rollout.Episode](t)
			enc, err := c.EncodeEpisode(&want)
			must(t, err)
			got, err := c.DecodeEpisode(enc)
			must(t, err)
			return enc, &want, got
		}},
		{"group", func(t *testing.T) ([]byte, any, any) {
			want := filled[rollout.Group](t)
			enc, err := c.EncodeGroup(&want)
			must(t, err)
			got, err := c.DecodeGroup(enc)
			must(t, err)
			return enc, &want, got
		}},
		{"run", func(t *testing.T) ([]byte, any, any) {
			want := filled[wire.RunTable](t)
			want.Schema = wire.Schema
			enc, err := wire.EncodeTable(want)
			must(t, err)
			got, err := wire.DecodeRunTable(enc)
			must(t, err)
			return enc, want, got
		}},
		{"engine", func(t *testing.T) ([]byte, any, any) {
			want := filled[rollout.EngineEntry](t)
			enc, err := wire.EncodeTable(want)
			must(t, err)
			got, err := wire.DecodeTable[rollout.EngineEntry](enc)
			must(t, err)
			return enc, want, got
		}},
		{"node", func(t *testing.T) ([]byte, any, any) {
			want := filled[wire.Node](t)
			enc, err := wire.EncodeTable(want)
			must(t, err)
			got, err := wire.DecodeTable[wire.Node](enc)
			must(t, err)
			return enc, want, got
		}},
	}
}

func TestEveryFieldSurvives(t *testing.T) {
	for _, r := range records(newCodec(t)) {
		t.Run(r.name, func(t *testing.T) {
			_, want, got := r.run(t)
			if !reflect.DeepEqual(want, got) {
				t.Errorf("read back\n%+v\nwant\n%+v", got, want)
			}
		})
	}
}

func TestGoldenFiles(t *testing.T) {
	for _, r := range records(newCodec(t)) {
		t.Run(r.name, func(t *testing.T) {
			enc, _, _ := r.run(t)
			path := filepath.Join("testdata", r.name+".golden")
			text := hex.Dump(enc)
			if *rewrite {
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v: run go test ./pkg/wire -rewrite", err)
			}
			if string(want) != text {
				t.Errorf("the encoding changed: raise Schema with a dated line, then run go test ./pkg/wire -rewrite")
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	c := newCodec(t)
	good, err := c.EncodeJob(rollout.Job{Run: "r"})
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name string
		data []byte
		want error
	}{
		{"nothing", nil, wire.ErrFormat},
		{"a head alone", good[:2], wire.ErrFormat},
		{"another schema", append([]byte{wire.Schema + 1}, good[1:]...), wire.ErrSchema},
		{"another kind", append([]byte{wire.Schema, 'e'}, good[2:]...), wire.ErrFormat},
		{"a cut body", good[:len(good)-3], wire.ErrFormat},
		{"bytes after the body", append(bytes.Clone(good), 0), wire.ErrFormat},
		{"an unknown field", []byte{wire.Schema, 'j', 0xa1, 0x63, 'N', 'e', 'w', 0x01}, wire.ErrFormat},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := c.DecodeJob(tc.data); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	t.Run("an episode whose arrays do not fit", func(t *testing.T) {
		e := filled[rollout.Episode](t)
		enc, err := c.EncodeEpisode(&e)
		if err != nil {
			t.Fatal(err)
		}
		// Shorten the packed log-probs (8 bytes long) in place: key, head, bytes.
		at := bytes.LastIndex(enc, append([]byte("hLogProbs"), 0x48))
		bad := append(bytes.Clone(enc[:at+9]), 0x44)
		bad = append(append(bad, enc[at+10:at+14]...), enc[at+18:]...)
		if _, err := c.DecodeEpisode(bad); !errors.Is(err, wire.ErrFormat) {
			t.Errorf("got %v, want %v", err, wire.ErrFormat)
		}
	})
}

func TestRunTableNamesBothSchemas(t *testing.T) {
	_, err := wire.DecodeRunTable([]byte(`{"Schema":99,"Later":true}`))
	if !errors.Is(err, wire.ErrSchema) || !strings.Contains(err.Error(), "99") {
		t.Errorf("got %v", err)
	}
}

func TestGroupsFile(t *testing.T) {
	c := newCodec(t)
	want := []rollout.Group{filled[rollout.Group](t), filled[rollout.Group](t)}
	want[1].Index = 99
	var buf bytes.Buffer
	if err := c.WriteGroups(&buf, want); err != nil {
		t.Fatal(err)
	}
	got, err := c.ReadGroups(bytes.NewReader(buf.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read back\n%+v\nwant\n%+v", got, want)
	}
	for cut := 1; cut < buf.Len(); cut += 37 {
		if _, err := c.ReadGroups(bytes.NewReader(buf.Bytes()[:cut])); err == nil && cut != buf.Len()/2 {
			t.Errorf("cut at %d of %d bytes: no error", cut, buf.Len())
		}
	}
}

// TestPromptSizeIsEnough: what a prompt says that it adds to a job is what it does.
func TestPromptSizeIsEnough(t *testing.T) {
	c := newCodec(t)
	size := func(p rollout.Prompt) int {
		rec, err := c.EncodeJob(rollout.Job{Prompt: p})
		if err != nil {
			t.Fatal(err)
		}
		return len(rec)
	}
	bare := size(rollout.Prompt{})
	for name, p := range map[string]rollout.Prompt{
		"text":          {Text: strings.Repeat("x", 1<<20), Label: json.RawMessage(`"4"`), Metadata: json.RawMessage(`{"a":1}`)},
		"many messages": {Messages: slices.Repeat([]rollout.Message{rollout.NewMessage("user", "")}, 10000)},
		"many tools":    {Tools: slices.Repeat([]json.RawMessage{json.RawMessage("{}")}, 10000)},
	} {
		if added, most := size(p)-bare, p.Size()+64; added > most {
			t.Errorf("%s: adds %d bytes, said %d", name, added, most)
		}
	}
}

func FuzzDecode(f *testing.F) {
	c := newCodec(f)
	job, err := c.EncodeJob(rollout.Job{Run: "r", Episodes: []int{1}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(job)
	f.Fuzz(func(t *testing.T, data []byte) {
		// Any bytes give a value or an error; what decodes encodes again.
		if j, err := c.DecodeJob(data); err == nil {
			if _, err := c.EncodeJob(j); err != nil {
				t.Error(err)
			}
		}
		if e, err := c.DecodeEpisode(data); err == nil {
			if _, err := c.EncodeEpisode(e); err != nil {
				t.Error(err)
			}
		}
		if e, err := c.DecodeEntry(data); err == nil {
			if _, err := c.EncodeEntry(e); err != nil {
				t.Error(err)
			}
		}
		_, _ = c.ReadGroups(bytes.NewReader(data))
		_, _ = wire.DecodeRunTable(data)
	})
}
