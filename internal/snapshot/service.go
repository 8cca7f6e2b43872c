package snapshot

import "time"

// Service does the operations. It is safe for concurrent use.
type Service struct {
	Options
}

// Options are the parts that a Service is made of; all are required.
type Options struct {
	Checkpoints Checkpoints
	Leases      Leases
	Instances   Instances
	Artifacts   ThreadArtifacts
	Objects     Objects
	Workspaces  Workspaces
	Sandboxes   Sandboxes
	Redactor    Redactor
	Node        NodeName
	Now         func() time.Time
	NewID       func() string // sortable, unique
}

func New(o Options) *Service { return &Service{Options: o} }
