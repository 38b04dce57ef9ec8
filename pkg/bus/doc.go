// Package bus holds the ports between the controller and its workers, in their
// words: jobs and their leases, results, the run table, the ledger. The adapter
// is pkg/bus/natsbus.
//
// What the ports promise, whoever implements them:
//
//   - A job is leased to one worker at a time as far as anyone can know. Two may
//     believe they hold it; then only the newer lease can store results.
//   - A result that was stored stays stored until its wave is trimmed, and is
//     stored once.
//   - A controller that was replaced can write nothing that counts: its next
//     write fails with ErrFenced.
//
// A job's states, as the stores show them:
//
//	planned ──Submit──> queued ──Lease──> leased ──Publish × episodes──> stored ──Done──> gone
//	                      ^                 │ worker dies, stalls or releases
//	                      └─────────────────┘   (attempt + 1; stored episodes stay)
package bus
