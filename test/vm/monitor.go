package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
)

// Monitor runs one command of QEMU's machine protocol (QMP) and returns its
// result: block_resize, device_add, set_link and so on. arguments becomes JSON;
// nil is none.
func (g *Guest) Monitor(ctx context.Context, command string, arguments any) (json.RawMessage, error) {
	g.monitor.Lock() // QEMU talks to one at a time
	defer g.monitor.Unlock()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", g.files.monitor)
	if err != nil {
		return nil, fmt.Errorf("QEMU's monitor: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	m := monitor{in: json.NewDecoder(bufio.NewReader(conn)), out: json.NewEncoder(conn)}
	if _, err := m.call("qmp_capabilities", nil); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	result, err := m.call(command, arguments)
	return result, errors.Join(err, ctx.Err())
}

// monitor is one connection to QEMU, whose greeting and events it ignores.
type monitor struct {
	in  *json.Decoder
	out *json.Encoder
}

type monitorAnswer struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

func (m monitor) call(command string, arguments any) (json.RawMessage, error) {
	if err := m.out.Encode(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{command, arguments}); err != nil {
		return nil, fmt.Errorf("QEMU's monitor: %s: %w", command, err)
	}
	for {
		var a monitorAnswer
		if err := m.in.Decode(&a); err != nil {
			return nil, fmt.Errorf("QEMU's monitor: %s: %w", command, err)
		}
		switch {
		case a.Error != nil:
			return nil, fmt.Errorf("QEMU's monitor: %s: %s: %s", command, a.Error.Class, a.Error.Desc)
		case a.Return != nil:
			return a.Return, nil
		}
	}
}
