// Package prompt reads prompt files and deals out their rows, epoch after epoch.
//
// It promises that
//
//   - which prompt stands at a position is a pure function of the file, the seed
//     and the position, over any number of epochs: a cursor is one number, and
//     reading has no state;
//   - every epoch holds each row exactly once;
//   - a row is taken as it was written or not at all: text that is not UTF-8, half a
//     surrogate pair, a key that is given twice and a row that is too long to
//     travel as a job make a bad row;
//   - no row is dropped in silence: a bad row is an error with its line, or is
//     counted and kept for the report.
//
// # Order
//
// Position p is row order(p mod n) of epoch p div n, for n rows. Without shuffling
// order is the identity. With it, order is a permutation chosen by seed and epoch
// from the original order (epoch 0 is shuffled too). It is a Feistel network of
// eight rounds over the smallest 2h-bit numbers that hold n, walked until the
// result is below n; a round's function is the top h bits of SplitMix64's output
// function on its key xor the half, and the keys are a SplitMix64 sequence that
// starts from seed and epoch. A change of any of this changes runs that are under
// way: a golden test holds it.
package prompt
