// Package agent is what both programs share: flags, connections, the embedded
// server, the assembly of a worker from its parts, exit codes.
package agent
