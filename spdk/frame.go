package spdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// ErrTooLarge is why a connection was given up on which an answer was larger
// than Config.MaxAnswer.
var ErrTooLarge = errors.New("an answer is too large")

// frames reads answers off a stream, one JSON value after the other, whatever
// white space is or is not between them.
type frames struct {
	bound   *bounded
	decoder *json.Decoder
}

func newFrames(r io.Reader, largest int64) *frames {
	b := &bounded{r: r, largest: largest}
	return &frames{bound: b, decoder: json.NewDecoder(b)}
}

// next returns the next answer. After an error the stream is of no use.
func (f *frames) next() (answer, error) {
	f.bound.left = f.bound.largest
	var e envelope
	if err := f.decoder.Decode(&e); err != nil {
		_, syntax := errors.AsType[*json.SyntaxError](err)
		_, form := errors.AsType[*json.UnmarshalTypeError](err)
		if syntax || form {
			return answer{}, fmt.Errorf("what came is no answer of JSON-RPC: %w", err)
		}
		return answer{}, fmt.Errorf("the connection was lost: %w", err)
	}
	return e.answer(), nil
}

// bounded refuses to read more for one value than a bound.
type bounded struct {
	r             io.Reader
	left, largest int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, b.largest)
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	return n, err
}

// envelope is an answer on the wire. Status and Message are those of SNAP 5,
// which wraps results and never sets an error.
type envelope struct {
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result"`
	Error   json.RawMessage `json:"error"`
	Status  json.RawMessage `json:"status"`
	Message json.RawMessage `json:"message"`
}

// answer is one answer; an id of 0 is none that was ever given out.
type answer struct {
	id     uint64
	result json.RawMessage // nil: there is none, or it is null
	failed bool
	status string // of SNAP 5
	code   int
	text   string
}

func (e envelope) answer() answer {
	a := answer{id: parseID(e.ID), result: notNull(e.Result)}
	if notNull(e.Error) != nil {
		a.failed = true
		a.code, a.text = parseRefusal(e.Error)
		return a
	}
	if s, ok := snapStatus(e.Status); ok {
		a.unwrap(s, e.Message)
		return a
	}
	var inner envelope
	if len(a.result) > 0 && a.result[0] == '{' && json.Unmarshal(a.result, &inner) == nil {
		if s, ok := snapStatus(inner.Status); ok {
			a.result = notNull(inner.Result)
			a.unwrap(s, inner.Message)
		}
	}
	return a
}

// unwrap reads the status of SNAP 5.
func (a *answer) unwrap(status string, message json.RawMessage) {
	if status == "SNAP_SUCCESS" {
		return
	}
	a.failed, a.status = true, status
	_ = json.Unmarshal(message, &a.text) // a message of another type says nothing
}

func snapStatus(raw json.RawMessage) (string, bool) {
	var s string
	if len(raw) == 0 || json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return s, strings.HasPrefix(s, "SNAP_")
}

// parseID takes numbers and strings; 0 is neither, or none of ours.
func parseID(raw json.RawMessage) uint64 {
	text := string(raw)
	if len(text) > 1 && text[0] == '"' {
		text = text[1 : len(text)-1]
	}
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return id
}

// parseRefusal reads an error member, and makes the best of one that is not as
// it should be.
func parseRefusal(raw json.RawMessage) (int, string) {
	var e struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(raw, &e); err != nil && e.Message == "" {
		var text string
		if json.Unmarshal(raw, &text) == nil {
			return e.Code, text
		}
		return e.Code, "an error that is not of JSON-RPC's form"
	}
	return e.Code, e.Message
}

func notNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil
	}
	return raw
}

// into decodes the result of a call, or makes its error.
func (a answer) into(method string, params []byte, result any) error {
	if a.failed {
		return a.refusal(method, params)
	}
	if result == nil {
		return nil
	}
	if raw, asIs := result.(*json.RawMessage); asIs {
		*raw = a.result
		return nil
	}
	if a.result == nil {
		return errs.Errorf(errs.Internal, "%s: the process answered without a result", method)
	}
	if err := json.Unmarshal(a.result, result); err != nil {
		return errs.Errorf(errs.Internal, "%s: cannot parse the answer: %w", method, err)
	}
	return nil
}

func (a answer) refusal(method string, params []byte) *Error {
	e := &Error{Method: method, Code: a.code, Status: a.status, Message: a.text}
	e.means = meanings(method, a.code, a.text)
	e.Message = redact(e.Message, params)
	return e
}

// methodChars are the characters of method names.
const methodChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"

// encodeParams makes the params of a request; nil is none.
func encodeParams(method string, params any) ([]byte, error) {
	if method == "" || len(method) > 128 || strings.Trim(method, methodChars) != "" {
		return nil, errs.Errorf(errs.Invalid, "%q is no name of a method", method)
	}
	if params == nil || reflect.ValueOf(params).Kind() == reflect.Pointer && reflect.ValueOf(params).IsNil() {
		return nil, nil
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(params); err != nil {
		return nil, errs.Errorf(errs.Invalid, "%s: the parameters cannot be written: %w", method, err)
	}
	body := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	switch {
	case body[0] != '{':
		return nil, errs.Errorf(errs.Invalid, "%s: parameters are an object, not a %T", method, params)
	case len(body) > maxRequest-256:
		return nil, errs.Errorf(errs.Invalid, "%s: the parameters have %d bytes; the process takes no more than %d", method, len(body), maxRequest-256)
	}
	return body, nil
}
