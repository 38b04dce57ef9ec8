// Package sim is a simulated engine: a stand-in for SGLang that runs on a laptop.
//
// It owns a real, if tiny, autoregressive policy ([Policy]), real sampling from it
// with and without speculative decoding against a smaller draft, real prefix-cache
// accounting, and SGLang's HTTP protocol in front of them ([Engine.Handler]). What
// it imitates is the protocol, the counters and the timing; what it does not
// imitate is a language model worth talking to. It says that it is a simulation in
// its version and in its log.
//
// # Promises
//
//   - An output is a function of the weights, the prompt, the sampling parameters
//     and the seed. It does not depend on what else is running: every random number
//     is a hash of (seed, absolute position, purpose). A request without a seed has
//     one derived from the engine's seed and its rid.
//   - Log-probs are the target policy's log-softmax(logits/T) before top-p, top-k
//     and min-p, as SGLang reports them, whichever way the token was sampled.
//   - The counters on /metrics under sheaf_sim_ are the truth: they count every
//     token emitted, also those of aborted requests and of replies that never
//     reached the client.
//
// # Structure
//
// One goroutine, the scheduler, owns the running batch, the prefix cache, the
// weights and the pause state, and works in steps: a step is one prefill of what
// waits or one decode of what runs. HTTP handlers post closures to it, which run
// between steps; so an abort, a pause or new weights never meet half a step. A
// request's progress travels back as immutable snapshots.
package sim
