package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"testing"
)

func raw(header string, data int) []byte {
	buf := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(buf, header...), make([]byte, data)...)
}

func sample(t testing.TB) []byte {
	t.Helper()
	var buf bytes.Buffer
	err := Write(&buf, map[string]string{"schema": "1", "a": "<b>"},
		Of("offsets", nil, []int64{0, 2, 5}),
		Of("logprobs", []int{2, 2}, []float32{-1, -2}, nil, []float32{-3, -4}),
		Of("versions", nil, []uint64{7}),
		Of("tokens", nil, []int32{1, -2, 3}),
		Stream("mask", U8, []int{3}, func(w io.Writer) error { _, err := w.Write([]byte{1, 0, 1}); return err }),
		Of[uint8]("empty", []int{0, 4}),
	)
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestWriteThenParse(t *testing.T) {
	data := sample(t)
	if !bytes.Equal(data, sample(t)) {
		t.Fatal("the same tensors gave different bytes")
	}
	if length := binary.LittleEndian.Uint64(data); length%8 != 0 {
		t.Errorf("header length %d leaves the data unaligned", length)
	}
	f, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"schema": "1", "a": "<b>"}; !reflect.DeepEqual(f.Metadata, want) {
		t.Errorf("metadata = %v, want %v", f.Metadata, want)
	}
	var names []string
	for _, info := range f.Tensors {
		names = append(names, info.Name)
	}
	if want := []string{"offsets", "logprobs", "versions", "tokens", "mask", "empty"}; !reflect.DeepEqual(names, want) {
		t.Errorf("tensors %v, want the order given, %v", names, want)
	}
	check(t, f, "offsets", []int64{0, 2, 5})
	check(t, f, "logprobs", []float32{-1, -2, -3, -4})
	check(t, f, "versions", []uint64{7})
	check(t, f, "tokens", []int32{1, -2, 3})
	check(t, f, "mask", []uint8{1, 0, 1})
	check(t, f, "empty", []uint8{})
	if _, err := Values[int32](f, "offsets"); err == nil {
		t.Error("an I64 tensor was read as I32")
	}
	if _, err := Values[int32](f, "none"); err == nil {
		t.Error("a missing tensor was read")
	}
}

func check[T Element](t *testing.T, f *File, name string, want []T) {
	t.Helper()
	got, err := Values[T](f, name)
	if err != nil {
		t.Error(err)
	} else if !reflect.DeepEqual(got, want) {
		t.Errorf("%s = %v, want %v", name, got, want)
	}
}

func TestWriteRefuses(t *testing.T) {
	tests := []struct {
		name    string
		tensors []Tensor
	}{
		{"a name used twice", []Tensor{Of("x", nil, []int32{1}), Of("x", nil, []int32{1})}},
		{"the reserved name", []Tensor{Of("__metadata__", nil, []int32{1})}},
		{"too few elements", []Tensor{Of("x", []int{2}, []int32{1})}},
		{"a short stream", []Tensor{Stream("x", I32, []int{2}, func(io.Writer) error { return nil })}},
		{"a negative dimension", []Tensor{Of[int32]("x", []int{-1})}},
		{"an unknown type", []Tensor{Stream("x", "F8", []int{0}, func(io.Writer) error { return nil })}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := Write(io.Discard, nil, tt.tensors...); err == nil {
				t.Error("it was written")
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name string
		data []byte
	}{
		{"nothing", nil},
		{"a header past the end", binary.LittleEndian.AppendUint64(nil, 50)},
		{"a huge header", binary.LittleEndian.AppendUint64(nil, 1<<60)},
		{"no object", raw(`[]`, 0)},
		{"leading space", raw(` {}`, 0)},
		{"text after the object", raw(`{} x`, 0)},
		{"cut JSON", raw(`{"a":`, 0)},
		{"a name twice", raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2)},
		{"an unknown key", raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}`, 1)},
		{"an unknown type", raw(`{"a":{"dtype":"Q1","shape":[1],"data_offsets":[0,1]}}`, 1)},
		{"no offsets", raw(`{"a":{"dtype":"U8","shape":[0]}}`, 0)},
		{"offsets the wrong way round", raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,-1]}}`, 1)},
		{"a hole", raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2)},
		{"an overlap", raw(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3)},
		{"bytes left over", raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 2)},
		{"bytes missing", raw(`{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}`, 2)},
		{"a shape that disagrees", raw(`{"a":{"dtype":"I32","shape":[2],"data_offsets":[0,4]}}`, 4)},
		{"a shape that overflows", raw(`{"a":{"dtype":"I32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0)},
		{"a negative dimension", raw(`{"a":{"dtype":"I32","shape":[-1],"data_offsets":[0,0]}}`, 0)},
		{"metadata that is no string", raw(`{"__metadata__":{"a":1}}`, 0)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Parse(tt.data); !errors.Is(err, ErrFormat) {
				t.Errorf("error %v, want ErrFormat", err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample(f))
	f.Add(raw(`{}`, 0))
	f.Add(raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			return
		}
		for _, info := range file.Tensors {
			if info.DType != U8 {
				continue
			}
			if _, err := Values[uint8](file, info.Name); err != nil {
				t.Errorf("an accepted file cannot be read: %v", err)
			}
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	tokens, logprobs := make([]int32, 4<<20), make([]float32, 4<<20)
	b.SetBytes(int64(4 * (len(tokens) + len(logprobs))))
	for b.Loop() {
		if err := Write(io.Discard, nil, Of("tokens", nil, tokens), Of("logprobs", nil, logprobs)); err != nil {
			b.Fatal(err)
		}
	}
}
