// Package pool makes one engine of many.
//
// It promises that
//
//   - a generation is sent to one engine, once. Only where no connection came
//     about, so that the engine never saw it, does it go to another, under a new
//     id;
//   - what an engine failed at comes back as that engine's failure; a call that
//     found no engine says how long it waited and why;
//   - an engine that keeps failing leaves the choice and is tried again by one
//     call at a time, so that it does not draw in the calls which its emptiness
//     would win;
//   - an engine that left the table finishes what it has.
//
// An engine is in one of four states here, beside the one in the engine table,
// which the controller alone writes:
//
//	taking calls --failures--> cooling down --time--> on trial --success--> taking calls
//	                                ^                     |
//	                                +------ failure ------+
//
// Every failed trial doubles the time to the next, up to a limit.
package pool
