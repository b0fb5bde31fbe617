package nbd

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
)

// readAhead is how many requests of a client are buffered while one is
// executed. QEMU has at most 16 in flight.
const readAhead = 16

// Serve serves one client until it disconnects or ctx ends, and closes the
// connection. A disconnect between requests and the end of ctx are not errors.
func Serve(ctx context.Context, conn io.ReadWriteCloser, d Device) error {
	connected, cancel := context.WithCancel(ctx)
	closed := make(chan struct{})
	context.AfterFunc(connected, func() { defer close(closed); conn.Close() })
	in := bufio.NewReaderSize(conn, 64<<10)
	h := handshake{in: in, out: conn, geometry: d.Geometry()}
	goOn, err := h.run()
	if goOn && err == nil {
		err = transmit(connected, cancel, in, conn, d)
	}
	if ctx.Err() != nil {
		err = nil
	}
	cancel()
	<-closed
	return err
}

// transmit is the transmission phase. A separate goroutine reads requests, so
// that a request is marked on arrival: a flush must not cover earlier writes
// that completed after it arrived.
func transmit(ctx context.Context, cancel func(), in io.Reader, out io.Writer, d Device) error {
	requests := make(chan Request, readAhead)
	ended := make(chan error, 1)
	go func() { ended <- receive(ctx, in, d, requests) }()
	var failed error
	for r := range requests {
		if failed = answer(out, d, r); failed != nil {
			break
		}
	}
	if isGone(d) {
		<-ctx.Done()
	}
	if failed != nil || isGone(d) {
		cancel() // ends receive too
	}
	if failed == errGone {
		failed = nil
	}
	return errors.Join(failed, <-ended)
}

// receive reads requests until the client disconnects.
func receive(ctx context.Context, in io.Reader, d Device, requests chan<- Request) error {
	defer close(requests)
	for {
		r, err := readRequest(in, d)
		if err == io.EOF || err == nil && r.Command == Disconnect {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case requests <- r:
		case <-ctx.Done():
			return nil
		}
	}
}

// errGone is returned when the device has lost power.
var errGone = errors.New("the device is gone")

// answer executes one request and sends the reply ("Simple reply message").
func answer(out io.Writer, d Device, r Request) error {
	if isGone(d) {
		return errGone
	}
	a := Answer{Error: r.refused}
	if r.refused == OK {
		a = d.Do(r)
	}
	if isGone(d) {
		return errGone
	}
	message := make([]byte, 0, 16+len(a.Data))
	message = binary.BigEndian.AppendUint32(message, magicSimple)
	message = binary.BigEndian.AppendUint32(message, uint32(a.Error))
	message = binary.BigEndian.AppendUint64(message, r.cookie)
	if r.Command == Read && a.Error == OK {
		message = append(message, a.Data...)
	}
	if _, err := out.Write(message); err != nil {
		return err
	}
	if r.refused == OK {
		d.Answered(r)
	}
	return nil
}

func isGone(d Device) bool {
	select {
	case <-d.Gone():
		return true
	default:
		return false
	}
}
