package agent

import (
	"errors"

	"sandkeep/internal/snapshot"
)

// Sentence is what a person is told about an error: of a snapshot error the
// message and the code, without the causes that are for the log.
func Sentence(err error) string {
	if e, ok := errors.AsType[*snapshot.Error](err); ok {
		return e.Message + " (" + string(e.Code) + ")"
	}
	return err.Error()
}
