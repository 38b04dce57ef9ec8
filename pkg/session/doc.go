// Package session makes agents that only speak a chat API trainable as they are.
// It keeps what a model saw and said as tokens, in a tree per session, and turns
// the tree's leaves into samples.
//
// A node is one generation and holds only what it adds: the tokens of the new
// messages, the tokens of the reply and their log-probs. A request carries the
// whole conversation; it goes on from the deepest node whose messages it begins
// with, so that history is looked up and never rendered again. What matches
// nothing is a branch of its own: a history is never refused.
//
//	request ── Match ──> node to go on from, new messages
//	              │
//	           Begin ──┬── same request in flight ───────────> joins its call
//	                   ├── same request done, undelivered ───> the reply once more
//	                   └── else a new call:
//
//	          rendering ──> generating ──> committed ──> delivered
//	              │             │              └── connection lost: undelivered
//	              └──refused    └── failed, aborted, or nobody waits any more:
//	                                recorded, and the tree is as it was
//
// Nothing changes a tree but the commit at the end of a call. Every engine call is
// recorded, committed or not: it was paid for.
//
// A session is open until it is closed or its time is over:
//
//	open ──> closing (calls are cancelled and waited for) ──> closed
//
// Assembly walks from each leaf to its root and merges the generations through
// [rollout.Sample.Append]; counters, masks and status come from there alone.
package session
