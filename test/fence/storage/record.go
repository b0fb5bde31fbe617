// Package storage has storage servers and clients for tests of fencing: a
// server that records numbered writes with their time of arrival, and small NBD
// and iSCSI clients for other servers.
package storage

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/cleatproject/cleat/test/fence/rig"
)

const (
	requestSize = 512 // writer, number, and filling
	entrySize   = 24  // writer, number, nanoseconds since 1970
)

// RecordRole is the role of a test binary that serves records.
const RecordRole = "records"

// ServeRecords is the main function of that role: it appends each numbered
// write to a file, and then acknowledges it.
func ServeRecords() int {
	port := flag.Int("port", 4420, "where to listen, in both families")
	path := flag.String("file", "", "where to append")
	flag.Parse()
	fmt.Fprintln(os.Stderr, "records:", serveRecords(*port, *path))
	return 1
}

func serveRecords(port int, path string) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)) // one socket for both families: IPv4 clients are 4in6
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			_ = takeRecords(conn, file)
		}()
	}
}

// takeRecords serves one session.
func takeRecords(conn net.Conn, file *os.File) error {
	var request [requestSize]byte
	var entry [entrySize]byte
	for {
		if _, err := io.ReadFull(conn, request[:]); err != nil {
			return err
		}
		copy(entry[:16], request[:16])
		binary.BigEndian.PutUint64(entry[16:], uint64(time.Now().UnixNano()))
		if _, err := file.Write(entry[:]); err != nil {
			return err
		}
		if _, err := conn.Write(request[8:16]); err != nil {
			return err
		}
	}
}

// Records is a server of records on a machine.
type Records struct {
	*rig.Process
	Port uint16
	file string
}

// StartRecords starts a server and waits until it listens.
func StartRecords(m *rig.Machine, port uint16) (*Records, error) {
	r := &Records{Port: port, file: fmt.Sprintf("%s/records-%d", m.Dir, port)}
	argv, env, err := rig.As(RecordRole, "-port", fmt.Sprint(port), "-file", r.file)
	if err != nil {
		return nil, err
	}
	if r.Process, err = m.Launch("records", env, argv...); err != nil {
		return nil, err
	}
	ctx, cancel := bounded()
	defer cancel()
	if err := m.WaitFor(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)); err != nil {
		return nil, fmt.Errorf("%w: %s", err, r.Log())
	}
	return r, nil
}

// Record is a write that the server has accepted.
type Record struct {
	Writer, Number uint64
	At             time.Time
}

// Read returns all records so far, by writer. It waits for a record that is
// being appended.
func (r *Records) Read() (map[uint64][]Record, error) {
	ctx, cancel := bounded()
	defer cancel()
	return readRecords(ctx, r.file)
}

func readRecords(ctx context.Context, path string) (map[uint64][]Record, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		rest := len(data) % entrySize
		if rest == 0 {
			return recordsOf(data), nil
		}
		select {
		case <-ctx.Done(): // the server is dead, or hangs
			return nil, fmt.Errorf("%s ends with %d bytes of a record of %d: %w", path, rest, entrySize, ctx.Err())
		case <-tick.C:
		}
	}
}

func recordsOf(data []byte) map[uint64][]Record {
	all := map[uint64][]Record{}
	for ; len(data) > 0; data = data[entrySize:] {
		one := Record{
			Writer: binary.BigEndian.Uint64(data), Number: binary.BigEndian.Uint64(data[8:]),
			At: time.Unix(0, int64(binary.BigEndian.Uint64(data[16:]))),
		}
		all[one.Writer] = append(all[one.Writer], one)
	}
	return all
}
