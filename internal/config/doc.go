// Package config reads the YAML file of a run.
//
// It owns every key that a user may write: their names, defaults, limits and how
// they depend on each other. It promises that
//
//   - no key is ignored: an unknown key, and a value whose feature this version
//     does not have, are problems;
//   - all problems are reported at once, each with its file, line and key;
//   - every size has an upper bound, and every deadline a lower one (limits.go);
//   - a secret never appears in an error, in the redacted form or in JSON.
//
// The keys are the json tags of [Config] and the types below it.
package config
