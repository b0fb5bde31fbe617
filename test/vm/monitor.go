package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
)

// Monitor runs one QEMU monitor (QMP) command, such as block_resize, device_add
// or set_link, and returns its result. arguments is marshalled to JSON and can
// be nil.
func (g *Guest) Monitor(ctx context.Context, command string, arguments any) (json.RawMessage, error) {
	g.monitor.Lock() // QEMU serves one monitor connection at a time
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

// monitor is one QMP connection; the greeting and events are ignored.
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
