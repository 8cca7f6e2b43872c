package agent

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

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

// parseSentence is that of a command line that can't be parsed: an identifier
// is told by its flag alone.
func parseSentence(err error) string {
	e, ok := errors.AsType[*snapshot.Error](err)
	if !ok {
		return negativeTime.ReplaceAllString(err.Error(), "$1 $2 is negative")
	}
	where, _, _ := strings.Cut(err.Error(), ": "+e.Error())
	_, fault, _ := strings.Cut(e.Message, " ") // after the name of the field
	return where + " " + fault
}

// negativeTime is what kong says of a time that looks like a flag.
var negativeTime = regexp.MustCompile(`^(--[a-z-]+): expected duration value but got "(-[0-9.]+[a-z0-9.µ]*)".*$`)

// spoken are words of the wire that people know by another name.
var spoken = map[string]string{"retryAfterMs": "a while", "checkpoint.list": "`agent log`", "checkpoint.files": "`agent ls`",
	"instance.attach": "`agent instance attach`"}

// inFlags tells a text in the words of a command: names of the wire become those
// of its flags and arguments. What is quoted stays, as do all words of a command
// with the tag wire:"-".
func inFlags(text string, command *kong.Node) string {
	names := maps.Clone(spoken)
	for n := command; n != nil; n = n.Parent {
		if n.Tag != nil && n.Tag.Get("wire") == "-" {
			return text
		}
		for _, f := range n.Flags {
			names[wireName(f.Value)] = "--" + f.Name
		}
		for _, p := range n.Positional {
			names[wireName(p)] = "<" + p.Name + ">"
		}
	}
	delete(names, "")
	words := regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\b(?:` + strings.ReplaceAll(strings.Join(slices.Collect(maps.Keys(names)), "|"), ".", `\.`) + `)\b`)
	return words.ReplaceAllStringFunc(text, func(word string) string {
		if name, ok := names[word]; ok {
			return name
		}
		return word
	})
}

// wireName is the tag wire of a flag or argument, or what its type is called on
// the wire.
func wireName(v *kong.Value) string {
	if name := v.Tag.Get("wire"); name != "" {
		return name
	}
	switch v.Target.Interface().(type) {
	case snapshot.ThreadID:
		return "threadId"
	case snapshot.RunID:
		return "runId"
	case snapshot.CheckpointID:
		return "checkpointId"
	case snapshot.ArtifactID:
		return "artifactId"
	case snapshot.InstanceKey:
		return "instanceKey"
	}
	return ""
}
