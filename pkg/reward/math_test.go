package reward

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// TestMathVectors holds Math against the grades of a reference that uses a
// computer algebra system, from testdata or the folder SHEAF_VECTORS.
func TestMathVectors(t *testing.T) {
	dir := "testdata"
	if d, ok := os.LookupEnv("SHEAF_VECTORS"); ok {
		dir = d
	}
	text, err := os.ReadFile(filepath.Join(dir, "graders.json"))
	if err != nil {
		t.Fatalf("%v\nrun: SHEAF_VECTORS=/folder/of/vectors go test ./pkg/reward -run Vectors", err)
	}
	var cases []struct {
		Kind     string
		Response string
		Label    json.RawMessage
		Expected json.RawMessage
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, tc := range cases {
		if tc.Kind != "math" {
			continue
		}
		n++
		if got := Math(tc.Response, rollout.RawText(tc.Label)); got != (string(tc.Expected) == "1") {
			t.Errorf("%q against %s: %v, want %s", tc.Response, tc.Label, got, tc.Expected)
		}
	}
	if n == 0 {
		t.Error("no math case")
	}
}

func TestMath(t *testing.T) {
	for _, tc := range []struct {
		answer, label string
		want          bool
	}{
		{`\frac{x+1}{2}`, `(x+1)/2`, true},
		{`\frac{x+1}{2}`, `x+1/2`, false},
		{`\frac{1}{2x}`, `1/(2x)`, true},
		{`\frac{1}{xy}`, `1/(x*y)`, true},
		{`\frac{1}{\sqrt{2}}`, `\frac{\sqrt{2}}{2}`, true},
		{`x^{-1}`, `1/x`, true},
		{`(x-1)(x+1)`, `x^2-1`, true},
		{`(x-1)(x+2)`, `x^2-1`, false},
		{`2(x+y)`, `2x+2y`, true},
		{`\frac{x^2-1}{x-1}`, `x+1`, true},
		{`\sqrt{x^2}`, `x`, false},
		{`\sqrt{12}+\sqrt{3}`, `3\sqrt{3}`, true},
		{`\sqrt{2}+\sqrt{3}`, `\sqrt{5+2\sqrt{6}}`, true},
		{`1.41421356237309504880168872420969807856967187537694`, `\sqrt{2}`, false},
		{`\frac{4\pi}{2}`, `2\pi`, true},
		{`\pi^2`, `9.8696`, false},
		{`\sqrt[3]{8}`, `\sqrt{8}`, false},
		{`2/4`, `1/2`, false},
		{`2/4`, `0.5`, true},
		{`5,000`, `5000`, true},
		{`(1, \frac{2}{4})`, `(1,0.5)`, true},
		{`(1,2]`, `(1,2)`, false},
		{`1+1`, `2`, false},
		{`a+b+c`, `c+b+a`, false},
		{`x^{12}`, `x^{12}`, true},
		{`x^{12}`, `x^6x^6`, false},
		{`1/0`, `2/0`, false},
		{`\text{east}`, `East`, true},
		{`3\text{ or }4`, `3`, true},
		{`9^9^9^9^9`, `9^9^9^9^8`, false},
		{`((((9^9)^9)^9)^9)^9`, `((((9^9)^9)^9)^8)^9`, false},
		{`sqrt(2)*(((((9*sqrt(3))^9)^9)^9)^9)^9`, `x`, false},
		{`(((((9*sqrt(3))^9)^9)^9)^9)^9-(((((9*sqrt(3))^9)^9)^9)^9)^9`, `x-x+sqrt(2)`, false},
		{strings.Repeat("sqrt(x+", 60) + "1" + strings.Repeat(")", 60), strings.Repeat("sqrt(x+", 60) + "2" + strings.Repeat(")", 60), false},
		{strings.Repeat("(", 300) + "x", "x+0", false},
		{`12345678901234567891`, `12345678901234567892`, false},
		{`0`, `0`, true},
		{`x==1`, `1`, false},
		{`}`, `x`, false},
		{`\frac`, `x`, false},
		{`\sqrt`, `x`, false},
		{`\`, `x`, false},
	} {
		t.Run(fmt.Sprintf("%.40s against %.40s", tc.answer, tc.label), func(t *testing.T) {
			if got := Math(`so \boxed{`+tc.answer+`}`, tc.label); got != tc.want {
				t.Errorf("got %v; forms %q, %q and %q, %q", got, plainForm(tc.answer), plainForm(tc.label), valueForm(tc.answer), valueForm(tc.label))
			}
		})
	}
	if Math(`\boxed{7}`, "") || Math("7", "7") || Math(`\boxed{7}`, `\boxed 7`) {
		t.Error("an answer or a truth that is not there counts")
	}
}

// A polynomial equals itself however its terms are ordered and written, and no
// polynomial with another coefficient.
func TestMathIdentities(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		coefficients := rapid.SliceOfN(rapid.IntRange(-20, 20), 2, 5).Draw(t, "coefficients")
		write := func(cs []int, descending bool) string {
			var terms []string
			for power, c := range cs {
				term := fmt.Sprintf("(%d)", c)
				switch {
				case power == 1:
					term += "x"
				case power > 1:
					term += fmt.Sprintf("x^%d", power)
				}
				if descending {
					terms = append([]string{term}, terms...)
				} else {
					terms = append(terms, term)
				}
			}
			return strings.Join(terms, "+")
		}
		label := write(coefficients, false)
		if !Math(`\boxed{`+write(coefficients, true)+`}`, label) {
			t.Fatalf("%s is not itself in another order", label)
		}
		changed := append([]int(nil), coefficients...)
		changed[rapid.IntRange(0, len(changed)-1).Draw(t, "at")] += rapid.SampledFrom([]int{-3, -1, 1, 7}).Draw(t, "by")
		if Math(`\boxed{`+write(changed, true)+`}`, label) {
			t.Fatalf("%s equals %s", write(changed, true), label)
		}
	})
}

func FuzzMath(f *testing.F) {
	f.Add(`\frac{1}{2}`, `0.5`)
	f.Add(`\sqrt3x^{2}`, `(1, 2]`)
	f.Add(`\text{ 5 }\left(9^9^9\right)`, `1e999`)
	f.Add(`1/2/3**4`, `\\{}`)
	f.Fuzz(func(t *testing.T, answer, label string) {
		got := Math(`\boxed{`+answer+`}`, label)
		if !strings.ContainsAny(answer+label, `{}\`) && answer != "" && label != "" {
			if back := Math(`\boxed{`+label+`}`, answer); back != got {
				t.Fatalf("%q against %q is %v, the other way round %v", answer, label, got, back)
			}
			if !Math(`\boxed{`+answer+`}`, answer) {
				t.Fatalf("%q does not answer itself", answer)
			}
		}
	})
}
