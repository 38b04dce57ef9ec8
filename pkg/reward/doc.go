// Package reward scores responses.
//
// A score is a number that the verifier stands by. It promises that what cannot
// be judged (no label, a verifier that is not there) is an error, which becomes
// a failure of the episode, and never a score of 0.
package reward
