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

// ErrTooLarge: a response exceeded Config.MaxAnswer, and the connection was
// closed.
var ErrTooLarge = errors.New("response too large")

// frames reads responses: JSON values with optional white space between them.
type frames struct {
	bound   *bounded
	decoder *json.Decoder
}

func newFrames(r io.Reader, largest int64) *frames {
	b := &bounded{r: r, largest: largest}
	return &frames{bound: b, decoder: json.NewDecoder(b)}
}

// next returns a response. After an error the stream is unusable.
func (f *frames) next() (answer, error) {
	f.bound.left = f.bound.largest
	var e envelope
	if err := f.decoder.Decode(&e); err != nil {
		_, syntax := errors.AsType[*json.SyntaxError](err)
		_, form := errors.AsType[*json.UnmarshalTypeError](err)
		if syntax || form {
			return answer{}, fmt.Errorf("invalid JSON-RPC response: %w", err)
		}
		return answer{}, fmt.Errorf("connection lost: %w", err)
	}
	return e.answer(), nil
}

type bounded struct {
	r             io.Reader
	left, largest int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, b.largest)
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	return n, err
}

// envelope is a response on the wire. SNAP 5 sets Status and Message, wraps
// results and never sets an error.
type envelope struct {
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result"`
	Error   json.RawMessage `json:"error"`
	Status  json.RawMessage `json:"status"`
	Message json.RawMessage `json:"message"`
}

// answer is a decoded response; id 0 is invalid.
type answer struct {
	id     uint64
	result json.RawMessage // nil: missing or null
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

// unwrap applies the status of SNAP 5.
func (a *answer) unwrap(status string, message json.RawMessage) {
	if status == "SNAP_SUCCESS" {
		return
	}
	a.failed, a.status = true, status
	_ = json.Unmarshal(message, &a.text) // other types are ignored
}

func snapStatus(raw json.RawMessage) (string, bool) {
	var s string
	if len(raw) == 0 || json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return s, strings.HasPrefix(s, "SNAP_")
}

// parseID accepts numbers and strings, and returns 0 for anything else.
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

// parseRefusal decodes an error member, a malformed one as far as possible.
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
		return e.Code, "malformed JSON-RPC error"
	}
	return e.Code, e.Message
}

func notNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil
	}
	return raw
}

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
		return errs.Errorf(errs.Internal, "%s: response without a result", method)
	}
	if err := json.Unmarshal(a.result, result); err != nil {
		return errs.Errorf(errs.Internal, "%s: parse the response: %w", method, err)
	}
	return nil
}

func (a answer) refusal(method string, params []byte) *Error {
	e := &Error{Method: method, Code: a.code, Status: a.status, Message: a.text}
	e.means = meanings(method, a.code, a.text)
	e.Message = redact(e.Message, params)
	return e
}

const methodChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"

func encodeParams(method string, params any) ([]byte, error) {
	if method == "" || len(method) > 128 || strings.Trim(method, methodChars) != "" {
		return nil, errs.Errorf(errs.Invalid, "invalid method name %q", method)
	}
	if params == nil || reflect.ValueOf(params).Kind() == reflect.Pointer && reflect.ValueOf(params).IsNil() {
		return nil, nil
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(params); err != nil {
		return nil, errs.Errorf(errs.Invalid, "%s: encode the parameters: %w", method, err)
	}
	body := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	switch {
	case body[0] != '{':
		return nil, errs.Errorf(errs.Invalid, "%s: parameters must be an object, not %T", method, params)
	case len(body) > maxRequest-256:
		return nil, errs.Errorf(errs.Invalid, "%s: the parameters have %d bytes, at most %d are allowed", method, len(body), maxRequest-256)
	}
	return body, nil
}
