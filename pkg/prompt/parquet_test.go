package prompt

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

// TestParquet reads files that another library wrote and wants of them what the
// same rows give as JSON lines.
func TestParquet(t *testing.T) {
	const lines = `{"prompt":[{"role":"user","content":"hi"}],"label":"4","metadata":{"a":1,"f":0.5,"ok":true,"big":18446744073709551615,"tags":["x",null],"deep":[[1,2],[],null],"map":{"k":1,"l":null}},"tools":[{"type":"function"}]}
{"prompt":[{"role":"system","content":null},{"role":"user","content":"ü<\"x"}]}
{"prompt":[]}
{"prompt":[{"role":"user","content":"last"}],"label":"","metadata":{"a":-1,"f":1e-07,"ok":false,"big":0,"tags":[],"deep":[[3]],"map":null},"tools":[]}
`
	for _, file := range []string{"new.parquet", "old.parquet"} {
		t.Run(file, func(t *testing.T) {
			cfg := columns
			cfg.SkipBad = true
			want, err := Read(strings.NewReader(lines), cfg)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Path = filepath.Join("testdata", file)
			got, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got.rows, want.rows) {
				t.Errorf("rows\n%+v\nwant\n%+v", got.rows, want.rows)
			}
			var row *RowError
			if bad := got.Skipped(); len(bad) != 1 || !errors.As(bad[0], &row) || row.Line != 3 {
				t.Errorf("skipped %v", bad)
			}

			cfg.Path += "@[1:2]"
			if part, err := Open(cfg); err != nil || part.Len() != 1 || part.rows[0].Row != 1 {
				t.Errorf("a slice: %v", err)
			}
		})
	}
}

func TestParquetColumns(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		err  string
	}{
		{"text prompts and a number for a label", Config{InputKey: "text", LabelKey: "count"}, `3: has no "text"`},
		{"bytes", Config{InputKey: "bytes"}, `1: "bytes": it is bytes, and not text`},
		{"not a number", Config{InputKey: "text", LabelKey: "nan"}, `1: "nan": it is not a finite number`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.cfg.Path = filepath.Join("testdata", "new.parquet")
			if _, err := Open(tc.cfg); err == nil || !strings.Contains(err.Error(), "new.parquet:"+tc.err) {
				t.Errorf("%v", err)
			}
		})
	}
	s, err := Open(Config{Path: filepath.Join("testdata", "new.parquet"), InputKey: "text", LabelKey: "count", SkipBad: true})
	if err != nil || s.rows[1].Text != "two" || s.rows[1].LabelText() != "2" {
		t.Errorf("rows %v, %v", s, err)
	}
}

func TestDamagedParquet(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join("testdata", "new.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.parquet")
	cfg := columns
	cfg.Path = path
	for _, text := range [][]byte{whole[:4], whole[:len(whole)/2], append(bytes.Clone(whole[:len(whole)-8]), "\xff\xff\xff\x7fPAR1"...)} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(cfg); !errors.Is(err, ErrParquet) {
			t.Errorf("%d bytes of a file: %v", len(text), err)
		}
	}
}

// FuzzParquet damages a file: whatever comes of it, it is rows or an error.
func FuzzParquet(f *testing.F) {
	var buf bytes.Buffer
	w := parquet.NewGenericWriter[struct {
		Prompt   string
		Label    *string
		Metadata struct{ A []int32 }
	}](&buf)
	if _, err := w.Write(make([]struct {
		Prompt   string
		Label    *string
		Metadata struct{ A []int32 }
	}, 3)); err != nil {
		f.Fatal(err)
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Len()/2, byte(1))
	f.Fuzz(func(t *testing.T, at int, flip byte) {
		text := bytes.Clone(buf.Bytes())
		if at >= 0 && at < len(text) {
			text[at] ^= flip
		}
		records, _, err := parquetRows(text, Config{InputKey: "Prompt", LabelKey: "Label", MetadataKey: "Metadata"})
		if err != nil && !errors.Is(err, ErrParquet) {
			t.Fatal(err)
		}
		for _, r := range records {
			if columns, err := r.columns(); err == nil {
				_, _ = parseColumns(columns, Config{InputKey: "Prompt"})
			}
		}
	})
}
