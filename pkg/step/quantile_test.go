package step

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestQuantilesAreThoseOfSortedValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(
			rapid.Float64Range(-1e3, 1e3),
			rapid.Map(rapid.IntRange(0, 3), func(i int) float64 { return float64(i) }),
			rapid.Float64Range(-1e300, 1e300),
		)
		xs := rapid.SliceOfN(value, 1, 50).Draw(t, "xs")
		qs := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 4).Draw(t, "qs")
		before := slices.Clone(xs)
		got := summarize(xs).quantiles(xs, qs...)
		if !slices.Equal(before, xs) {
			t.Error("the input was changed")
		}
		slices.Sort(xs)
		for i, q := range qs {
			at := q * float64(len(xs)-1)
			k := int(at)
			want := xs[k]
			if k+1 < len(xs) {
				want += (at - float64(k)) * (xs[k+1] - xs[k])
			}
			if math.Abs(got[i]-want) > 1e-12*math.Abs(want) {
				t.Errorf("quantile %v of %v = %v, want %v", q, xs, got[i], want)
			}
		}
	})
}

func TestQuantilesAtTheEdgesOfADouble(t *testing.T) {
	tests := []struct {
		name string
		xs   []float64
		q    float64
		want float64
	}{
		{"too far apart", []float64{-math.MaxFloat64, 0, math.MaxFloat64}, 0.5, 0},
		{"too near", []float64{0, math.SmallestNonzeroFloat64, 0}, 1, math.SmallestNonzeroFloat64},
		{"an infinity", []float64{0, math.Inf(1)}, 0, 0},
		{"equal", []float64{3, 3}, 0.5, 3},
		{"one", []float64{3}, 0.99, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := summarize(tt.xs).quantiles(tt.xs, tt.q)[0]; got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
