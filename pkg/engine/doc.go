// Package engine holds the ports to inference engines, in the words of their
// users, and the ways a call can end. Adapters live below it: sglang speaks to a
// running engine, pool makes one of many, sim is an engine of our own.
package engine
