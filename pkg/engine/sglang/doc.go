// Package sglang speaks to one running SGLang engine over HTTP. It is the only
// reader of an engine's JSON, and the only place where the names of an engine's
// fields stand.
//
// It promises that
//
//   - one call of Generate is one request to the engine, which is sent again only
//     when the engine cannot have begun it (see [Client.Generate]);
//   - what the engine did not say is nil and never 0, whatever the engine's
//     version calls its fields;
//   - tokens and log-probs that come back are one to one; a reply whose parts
//     contradict each other is an error, and one without usable log-probs is
//     marked untrainable with its reason;
//   - every failure is an [*engine.Error] with its reason, and no call outlives
//     its context.
//
// Numbers in comments ("hazard 16") refer to the table in docs/hazards.md.
package sglang
