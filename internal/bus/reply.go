package bus

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"sandkeep/internal/snapshot"
)

// respond publishes the reply, a good one or an error, and counts it.
func (w *Worker) respond(c *call, msg *nats.Msg, err error) {
	var sent *snapshot.Error
	if err != nil {
		sent = public(err)
		msg = w.errorReply(c, sent)
	} else {
		sent = decodeFault(msg.Header, msg.Data) // a relayed reply may be one
	}
	w.report(c, sent, len(msg.Data))
	if msg.Subject = c.reply; w.reserved(c.reply) {
		return
	}
	if err := w.nc.PublishMsg(msg); err != nil {
		w.Log.Error().Str("subject", c.name).Str("req_id", c.id).Err(err).Msg("reply not sent")
	}
}

// reserved: a client chooses where the reply goes, but must not write to the
// store's own subjects ($KV, $O, …) or change streams with this worker's
// permissions.
func (w *Worker) reserved(subject string) bool {
	return subject == "" || strings.HasPrefix(subject, "$") || w.APIPrefix != "" && strings.HasPrefix(subject, w.APIPrefix)
}

// goodReply encodes a reply; one that was relayed stays as it is.
func (w *Worker) goodReply(c *call, reply any) (*nats.Msg, error) {
	if m, ok := reply.(*nats.Msg); ok {
		return &nats.Msg{Header: m.Header, Data: m.Data}, nil
	}
	c.answer = reply
	for i := range c.warnings {
		c.warnings[i].Message = w.Redactor.Text(c.warnings[i].Message)
	}
	body, err := encode(reply, c.warnings)
	if err == nil {
		body, err = w.claimed(c, body)
	}
	return &nats.Msg{Data: body}, err
}

// claimed puts a body that is too large for a message into the store.
func (w *Worker) claimed(c *call, body []byte) ([]byte, error) {
	if int64(len(body)) <= c.maxReply {
		return body, nil
	}
	ctx, cancel := context.WithTimeout(w.base, claimTimeout) // the request's own time may be over
	defer cancel()
	object, err := w.Transfer.PutReply(ctx, body)
	if err != nil {
		return nil, fmt.Errorf("put reply of %d bytes: %w", len(body), err)
	}
	return marshal(map[string]string{"$object": object})
}

func (w *Worker) errorReply(c *call, e *snapshot.Error) *nats.Msg {
	header, body, err := encodeFault(e, w.Redactor)
	if err == nil {
		body, err = w.claimed(c, body)
	}
	if err != nil { // then without what made it large
		short := snapshot.Errorf(e.Code, "%s", cut(w.Redactor.Text(e.Message), maxErrorHeader))
		header, body, _ = encodeFault(short, w.Redactor)
	}
	return &nats.Msg{Header: header, Data: body}
}

// report counts the reply and logs it.
func (w *Worker) report(c *call, e *snapshot.Error, size int) {
	took := time.Since(c.started)
	line := w.Log.WithLevel(w.level(c, e)).Str("subject", c.name).Str("req_id", c.id).Int("bytes", size).Stringer("dur", took.Round(time.Microsecond))
	if line.Enabled() {
		about(c.request, c.answer, func(key, id string) { line.Str(key, w.Redactor.Text(id)) })
	}
	var code snapshot.Code
	if e != nil {
		code = e.Code
		line = line.Str("code", string(code)).Str("error", w.Redactor.Text(e.Error()))
		if id, ok := e.Details["id"].(string); ok && code == snapshot.Internal {
			line = line.Str("id", id)
		}
	}
	c.counts.end(code, took)
	w.reportPhases(c)
	line.Msg("request done")
}

// reportPhases logs where the time of a save went.
func (w *Worker) reportPhases(c *call) {
	saved, _ := c.answer.(*snapshot.Checkpoint)
	if saved == nil || len(saved.Coverage.Phases) == 0 {
		return
	}
	line := w.Log.Debug().Str("req_id", c.id)
	for name, p := range saved.Coverage.Phases {
		line = line.Dict(name, zerolog.Dict().Float64("ms", p.Ms).Int64("count", p.Count).Int64("bytes", p.Bytes))
	}
	line.Msg("save phases")
}

func (w *Worker) level(c *call, e *snapshot.Error) zerolog.Level {
	switch {
	case e != nil && (e.Code.Status() == 503 || e.Code.Status() == 504):
		return zerolog.WarnLevel
	case e != nil && e.Code.Status() >= 500:
		return zerolog.ErrorLevel
	case w.rows[c.name].heavy:
		return zerolog.InfoLevel
	}
	return zerolog.DebugLevel
}
