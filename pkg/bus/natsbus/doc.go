// Package natsbus is the NATS JetStream adapter of pkg/bus, and the embedded
// server that a run uses when it has no other. It is the only package that
// imports NATS.
//
// # Streams and subjects of a run
//
//	SHEAF_LEDGER_<run>   sheaf.<run>.led.log            the log, compare-and-set appends
//	SHEAF_JOBS_<run>     sheaf.<run>.jobs.fence         fence mark of the current epoch
//	  (work queue)       sheaf.<run>.jobs.<wave>.<group>
//	SHEAF_RESULTS_<run>  sheaf.<run>.res.fence          fence mark of the current epoch
//	                     sheaf.<run>.res.<wave>.<group>.L          lease marks
//	                     sheaf.<run>.res.<wave>.<group>.<episode>  results
//	                     sheaf.<run>.res.waste          what was generated in vain; not fenced
//	KV sheaf_run_<run>   run, engine.<id>, node.<id>
//	objects SHEAF_BLOBS_<run>   results too large for a message
//
// # Fences
//
// An ack is no fence in JetStream and a delivery count is no attempt number.
// Every write that could come from a holder that was replaced therefore expects
// the last sequence of a subject, and the server checks it:
//
//	led.log  (each append expects the entry before it)
//	   └─> jobs.fence, res.fence   rewritten by each epoch, after a look at the log's tail
//	          ├─> jobs.<wave>.<group>          expects jobs.fence
//	          └─> res.<wave>.<group>.L  #0     expects res.fence; written with the job
//	                 └─> L #n                  expects L #n-1: the lease, attempt n
//	                        └─> result         expects L #n
//
// A purge of res.<wave>.> removes the marks, so that whatever comes late is
// refused for good. The first mark is written by the controller, per group: thus
// every lease is a compare-and-set, and attempt numbers never repeat.
package natsbus
