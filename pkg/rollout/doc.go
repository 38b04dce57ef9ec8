// Package rollout holds the nouns of Sheaf and the pure rules on them: jobs,
// generations, samples, episodes and groups. It imports nothing of ours and does
// no I/O.
//
// The metadata merger lives here and nowhere else. Whatever drives an engine
// (direct mode, a tool loop, a session) hands each reply to [Sample.Append];
// tokens, loss mask, log-probs, weight versions, counters and status change
// there, and in its siblings Trim, Cut and Mask, and nowhere else.
//
// Absent is not zero: a counter that an engine did not report is a nil pointer,
// and a sum over samples says over how many it was taken.
package rollout
