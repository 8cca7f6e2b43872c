// Package bus is NATS in and out: the connection, the service and its
// endpoints, the strict codec, error replies, the way from node to node, the
// embedded server and a client. It holds no rules of the domain.
//
// A request goes: subscription goroutine (decode, admit to a bounded pool) →
// pool goroutine (fetch a claim-checked request, find the node, run) → reply
// published to the request's reply subject. The micro request is never touched
// after its handler returned. The heavy pool (saves, forks, appends, contents)
// and the light one (reads, small writes) are apart, so that reads never wait
// behind saves; acquires have a pool of their own, and saves and forks that wait
// for a lease are admitted by it and give their running slot to others, so that
// those that wait, up to 512, never stand in the way of the holder. A relayed
// request takes no running slot here, nor room for what came as an object, so
// that two nodes that relay to each other can't wait for each other.
package bus
