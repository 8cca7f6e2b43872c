package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"sandkeep/internal/agent"
	"sandkeep/internal/bus"
	"sandkeep/internal/snapshot"
)

// advise adds to the error of a request what this command line can say: which
// flag to give, how to see what came of it, or which subject was meant.
func (k *caller) advise(ctx context.Context, err error, subject string, request []byte) error {
	e, ok := errors.AsType[*snapshot.Error](err)
	if !ok {
		return err
	}
	told := *e
	switch {
	case e.Code == snapshot.Canceled && ctx.Err() != nil:
		fate := k.fate(subject, request)
		if fate == "" {
			return err
		}
		told.Message = fmt.Sprintf("interrupted; the worker may still finish %s: %s", shown(subject), fate)
		told.Err = agent.ErrInterrupted
	case e.Code == snapshot.Timeout:
		told.Message += fmt.Sprintf("; --timeout, which is %s, makes it wait longer", k.timeout)
		if fate := k.fate(subject, request); fate != "" {
			told.Message += "; " + fate
		}
	case !k.json && (e.Code == snapshot.WriterConflict || e.Code == snapshot.LockConflict) && canWait(strings.TrimPrefix(subject, k.Prefix+"."), request):
		told.Message += "; waitMs makes it wait" // inFlags knows what that is called
	case errors.Is(e.Err, nats.ErrNoResponders):
		served := k.served(ctx)
		near := nearest(subject, served)
		if near == "" || near == subject { // or a worker has just come
			return err
		}
		if slices.Contains(served, k.Subject(lastAdded)) { // a worker of the prefix is there: it is no use to wait
			told.Code = snapshot.BadRequest
		}
		told.Message = fmt.Sprintf("no worker serves %s; the nearest that is served is %s", shown(subject), shown(near))
	default:
		return err
	}
	return &told
}

// reads change nothing, so it doesn't matter whether they were done.
var reads = []string{"artifact.list", "artifact.read", "blob.get", "blob.head", "blob.references", "checkpoint.diff", "checkpoint.files",
	"checkpoint.get", "checkpoint.head", "checkpoint.list", "file.read", "instance.get", "instance.list", "thread.load"}

// canWait tells of a request that it could have waited for a lease and did not.
func canWait(name string, request []byte) bool {
	var r struct{ WaitMs int64 }
	_ = json.Unmarshal(request, &r)
	return r.WaitMs == 0 && slices.Contains([]string{"fork", "lock.acquire", "snapshot.save", "writer.acquire"}, name)
}

// looks are the commands that show what came of a request about a thread.
var looks = map[string]string{
	"artifact.delete": "artifact list", "artifact.put": "artifact list", "checkpoint.append": "log", "checkpoint.delete-head": "head",
	"checkpoint.fork": "head", "fork": "head", "instance.attach": "instance list --thread", "instance.delete": "instance list",
	"instance.upsert": "instance list", "snapshot.save": "log", "thread.delete": "head", "thread.save": "thread load",
}

// fate says how to see whether a request was done; "" for one that changes nothing.
func (k *caller) fate(subject string, request []byte) string {
	name := strings.TrimPrefix(subject, k.Prefix+".")
	if slices.Contains(reads, name) {
		return ""
	}
	var r struct{ ThreadID, CheckpointID, DestinationThreadID, DestinationCheckpointID, Path, Mode string }
	_ = json.Unmarshal(request, &r) // what is not JSON has no ids
	thread, id := r.ThreadID, r.CheckpointID
	if strings.HasSuffix(name, "fork") {
		thread, id = r.DestinationThreadID, r.DestinationCheckpointID
	}
	look, known := looks[name]
	switch {
	case name == "restore" && r.Mode == "exact":
		return "the same restore again makes it whole"
	case name == "restore" && r.Path != "":
		return fmt.Sprintf("look whether %s is there", shown(r.Path))
	case !known:
		return "look whether it was done before you try again"
	}
	command := strings.TrimSpace("agent " + look + " " + argumentOf(thread))
	if id != "" && (look == "log" || look == "head") {
		return fmt.Sprintf("`%s` shows whether it was done, look for checkpoint %s", command, shown(id))
	}
	return fmt.Sprintf("`%s` shows whether it was done", command)
}

// argumentOf quotes an id for a shell where that is needed.
func argumentOf(id string) string {
	if strings.ContainsFunc(id, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@%+=-", r)
	}) {
		return shown("'" + strings.ReplaceAll(id, "'", `'\''`) + "'")
	}
	return id
}

// lastAdded is served by a worker that serves all that it ever will.
const lastAdded = "snapshot.save"

// served are the subjects that workers serve, whatever their prefix.
func (k *caller) served(ctx context.Context) (subjects []string) {
	inbox := k.nc.NewInbox()
	replies, err := k.nc.SubscribeSync(inbox)
	if err != nil {
		return nil
	}
	defer replies.Unsubscribe()
	if err := k.nc.PublishRequest("$SRV.INFO."+bus.ServiceName, inbox, nil); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, infoPatience)
	defer cancel()
	for {
		msg, err := replies.NextMsgWithContext(ctx)
		if err != nil {
			return subjects
		}
		var info struct{ Endpoints []struct{ Subject string } }
		_ = json.Unmarshal(msg.Data, &info) // another service of this name is of no interest
		for _, e := range info.Endpoints {
			if !strings.HasSuffix(e.Subject, ">") { // those between workers
				subjects = append(subjects, e.Subject)
			}
		}
	}
}

// infoPatience is how long to wait for what workers say of themselves.
const infoPatience = 500 * time.Millisecond

// nearest is the name with the fewest letters to change, "" of none.
func nearest(name string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return slices.MinFunc(names, func(a, b string) int { return cmp.Compare(distance(name, a), distance(name, b)) })
}

// distance is that of Levenshtein, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
