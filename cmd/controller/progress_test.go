package main

import (
	"strings"
	"testing"
)

func TestShortKeepsTheTerminalAsItIs(t *testing.T) {
	cases := []struct{ name, text, want string }{
		{"plain", "3+4=7", "3+4=7"},
		{"lines", "a\nb\r\n\tc", "a⏎b⏎ c"},
		{"escape", "\x1b[31mred\x07", "\ufffd[31mred\ufffd"},
		{"C1 control", "\u009b31m", "\ufffd31m"},
		{"writing direction", "\u202eabc", "\ufffdabc"},
		{"many scripts", "你好 привет 😀", "你好 привет 😀"},
		{"not UTF-8", "a\xffb", "a\ufffdb"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if got := short(tc.text); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	if got := short(strings.Repeat("é", 1000)); len([]rune(got)) > 170 {
		t.Errorf("%d characters", len([]rune(got)))
	}
}
