package spdktest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"sync"
)

const (
	// Limits of a process [R].
	maxConnections = 64
	// Sizes of a request and its id [R].
	maxRequest = 256 << 10
	maxID      = 128
)

type request struct {
	id     json.RawMessage // nil: missing
	method string
	params json.RawMessage
}

type answer struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

func (p *Process) accept(l *life) {
	for {
		c, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		admitted := l.ctx.Err() == nil && len(l.conns) < maxConnections
		if admitted {
			l.conns[c] = struct{}{}
		}
		l.mu.Unlock()
		if !admitted {
			shut(c)
			continue
		}
		l.serving.Go(func() { p.serve(l, c) })
	}
}

// connection sends responses in the order in which they are ready.
type connection struct {
	net.Conn
	writing sync.Mutex
}

func (c *connection) send(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_, _ = c.Write(append(text, '\n'))
}

func (p *Process) serve(l *life, conn net.Conn) {
	c := &connection{Conn: conn}
	defer func() {
		shut(conn)
		l.mu.Lock()
		delete(l.conns, conn)
		l.mu.Unlock()
	}()
	limit := &io.LimitedReader{R: conn}
	d := json.NewDecoder(limit)
	for {
		limit.N = maxRequest
		var text json.RawMessage
		if err := d.Decode(&text); err != nil {
			// Malformed JSON or EOF closes the connection without a response.
			return
		}
		// Requests are executed even if the client disconnects.
		l.serving.Go(func() { p.take(l, c, text) })
	}
}

// take processes a request, or an array of them.
func (p *Process) take(l *life, c *connection, text json.RawMessage) {
	var batch []json.RawMessage
	if text[0] != '[' {
		if a := p.handle(l, c, text); a != nil {
			c.send(a)
		}
		return
	}
	if err := json.Unmarshal(text, &batch); err != nil || len(batch) == 0 {
		c.send(&answer{Version: "2.0", ID: null(), Error: invalidRequest()})
		return
	}
	var all []*answer
	for _, one := range batch {
		if a := p.handle(l, c, one); a != nil {
			all = append(all, a)
		}
	}
	if len(all) > 0 {
		c.send(all)
	}
}

// handle returns nil if no response is sent.
func (p *Process) handle(l *life, c *connection, text json.RawMessage) *answer {
	r, fail := parse(text)
	if fail != nil {
		return fail
	}
	result, err, answered := p.call(l, c, r)
	if !answered || r.id == nil {
		return nil
	}
	a := &answer{Version: "2.0", ID: r.id, Error: err}
	if err == nil {
		a.Result = result
	}
	return a
}

// parse rejects invalid JSON-RPC 2.0, like the recorded process.
func parse(text json.RawMessage) (request, *answer) {
	bad := func(id json.RawMessage) (request, *answer) {
		return request{}, &answer{Version: "2.0", ID: id, Error: invalidRequest()}
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return bad(null())
	}
	r := request{id: members["id"], params: members["params"]}
	for name, value := range members {
		switch name {
		case "id", "params":
		case "jsonrpc":
			if string(value) != `"2.0"` {
				return bad(null())
			}
		case "method":
			if err := json.Unmarshal(value, &r.method); err != nil {
				return bad(null())
			}
		default:
			return bad(null())
		}
	}
	if r.method == "" || len(r.id) > maxID+2 || len(r.id) > 0 && bytes.ContainsAny(r.id[:1], "[{tf") {
		return bad(null())
	}
	if len(r.params) > 0 && !bytes.ContainsAny(r.params[:1], "[{n") {
		return bad(r.id)
	}
	return r, nil
}

func null() json.RawMessage { return json.RawMessage("null") }

// call executes a request; answered: no fault suppresses the response.
func (p *Process) call(l *life, c *connection, r request) (result any, err *Error, answered bool) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	if !p.alive(l) {
		return nil, nil, false
	}
	p.note(r)
	f := p.fault(r)
	if !p.network.sleep(l.ctx, f.Wait) {
		return nil, nil, false
	}
	if f.Error != nil {
		return nil, f.Error, true
	}
	if f.Instead != Answer {
		p.act(l, c, f.Instead)
		return nil, nil, false
	}
	result, err = p.execute(l.ctx, r)
	if !p.alive(l) {
		return nil, nil, false
	}
	if !reads(r.method) {
		p.network.touch()
	}
	if f.Hold > 0 && !p.network.sleep(l.ctx, f.Hold) {
		return nil, nil, false
	}
	if f.Then != Answer {
		p.act(l, c, f.Then)
		return nil, nil, false
	}
	return result, err, true
}

func (p *Process) execute(ctx context.Context, r request) (any, *Error) {
	m, known := p.methods[r.method]
	if !known {
		return nil, &Error{Code: -32601, Message: "Method not found"}
	}
	if e := p.phase(m); e != nil {
		return nil, e
	}
	p.network.catchUp()
	if m.run == nil {
		return nil, &Error{Code: -32603, Message: "spdktest: " + r.method + " is listed, but not implemented by the double"}
	}
	a, ok := decode(r.params, m.takes)
	if !ok {
		return nil, m.refusal(r.method)
	}
	return m.run(p, ctx, a)
}

func reads(method string) bool {
	return strings.Contains(method, "_get_") || strings.HasSuffix(method, "_list")
}
