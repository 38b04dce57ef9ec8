package config

import (
	"errors"
	"fmt"
	"time"
)

// Duration is a length of time, written with a unit: "30s".
type Duration time.Duration

// UnmarshalText reads "30s", "5m", "1h30m".
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New(`must be a length of time with its unit, such as 30s or 5m`)
	}
	if v <= 0 {
		return errors.New("must be longer than 0")
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes the form that UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// AutoDuration is a Duration that may be left to Sheaf: "auto", which is 0.
type AutoDuration time.Duration

// UnmarshalText reads "auto" or a duration.
func (d *AutoDuration) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*d = 0
		return nil
	}
	if err := (*Duration)(d).UnmarshalText(text); err != nil {
		return fmt.Errorf("%w, or auto", err)
	}
	return nil
}

// MarshalText writes the form that UnmarshalText reads.
func (d AutoDuration) MarshalText() ([]byte, error) {
	if d == 0 {
		return []byte("auto"), nil
	}
	return Duration(d).MarshalText()
}

// Secret is text that is not shown. Only Reveal gives it away.
type Secret string

const hidden = "(hidden)"

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String hides the secret, also from %v, %s and %q.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// MarshalText hides the secret from every encoder.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the secret.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = Secret(text)
	return nil
}
