package bus

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"

	"sandkeep/internal/snapshot"
)

// faultBody is the body of an error reply.
type faultBody struct {
	Error faultWire `json:"error"`
}

type faultWire struct {
	Code      snapshot.Code   `json:"code"`
	Message   string          `json:"message"`
	Retryable bool            `json:"retryable"`
	Details   json.RawMessage `json:"details"`
}

// public is what the client is told about err. A cause that nobody has named
// stays here: the client gets an id under which the log has it.
func public(err error) *snapshot.Error {
	if e := snapshot.AsError(err); e != nil {
		return e
	}
	id := nuid.Next()
	return snapshot.Errorf(snapshot.Internal, "the worker ran into a fault of its own; its log has more under the id %s", id).
		With("id", id).Because(err)
}

// Bounds of a message in the body and in the header. Messages are cut here and
// nowhere before: a part of a secret can't be recognised.
const (
	maxErrorMessage = 4096
	maxErrorHeader  = 512
)

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// encodeFault writes an error reply, free of secrets.
func encodeFault(e *snapshot.Error, red snapshot.Redactor) (nats.Header, []byte, error) {
	details := json.RawMessage("{}")
	if len(e.Details) > 0 {
		b, err := marshal(e.Details)
		if err != nil {
			return nil, nil, err
		}
		details, _ = red.JSON(b)
	}
	message := cut(red.Text(e.Message), maxErrorMessage)
	body, err := marshal(faultBody{faultWire{Code: e.Code, Message: message, Retryable: e.Code.Retryable(), Details: details}})
	line := cut(strings.Join(strings.Fields(message), " "), maxErrorHeader)
	header := nats.Header{}
	header.Set(micro.ErrorHeader, line)
	header.Set(micro.ErrorCodeHeader, strconv.Itoa(e.Code.Status()))
	return header, body, err
}

// decodeFault reads an error reply; nil if the message is none.
func decodeFault(header nats.Header, body []byte) *snapshot.Error {
	status := header.Get(micro.ErrorCodeHeader)
	if status == "" {
		return nil
	}
	var b struct {
		Error struct {
			Code    snapshot.Code  `json:"code"`
			Message string         `json:"message"`
			Details map[string]any `json:"details"`
		} `json:"error"`
	}
	if err := json.Unmarshal(body, &b); err != nil || b.Error.Code == "" {
		return snapshot.Errorf(snapshot.Internal, "the worker answered with error %s: %s", status, header.Get(micro.ErrorHeader))
	}
	return &snapshot.Error{Code: b.Error.Code, Message: b.Error.Message, Details: b.Error.Details}
}
