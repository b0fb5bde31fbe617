package nbd_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// The helpers below are written from the protocol document, independent of the
// package's constants.

func option(number uint32, data ...byte) []byte {
	message := binary.BigEndian.AppendUint32([]byte("IHAVEOPT"), number)
	return append(binary.BigEndian.AppendUint32(message, uint32(len(data))), data...)
}

func request(flags uint16, c nbd.Command, offset uint64, length uint32) []byte {
	message := binary.BigEndian.AppendUint16([]byte{0x25, 0x60, 0x95, 0x13}, flags)
	message = binary.BigEndian.AppendUint16(message, uint16(c))
	message = append(message, "cookie!!"...)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(message, offset), length)
}

func reply(number, kind uint32, data ...byte) []byte {
	message := binary.BigEndian.AppendUint32([]byte{0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9}, number)
	message = binary.BigEndian.AppendUint32(message, kind)
	return append(binary.BigEndian.AppendUint32(message, uint32(len(data))), data...)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

var (
	hello      = []byte("NBDMAGICIHAVEOPT\x00\x03")
	clientPlus = []byte{0, 0, 0, 3} // fixed newstyle, no zeroes
	blockInfo  = []byte{0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 0, 0x40, 0, 0}
)

func send(t *testing.T, conn net.Conn, message []byte) {
	t.Helper()
	testkit.Value(conn.Write(message))(t)
}

// enter negotiates by hand.
func enter(t *testing.T, conn net.Conn) {
	t.Helper()
	answer := make([]byte, len(hello)+10)
	testkit.Value(io.ReadFull(conn, answer[:len(hello)]))(t)
	send(t, conn, join(clientPlus, option(1)))
	testkit.Value(io.ReadFull(conn, answer[len(hello):]))(t)
}

func TestHandshake(t *testing.T) {
	const unsupported, invalid, unknown, tooBig = 1<<31 + 1, 1<<31 + 3, 1<<31 + 6, 1<<31 + 9
	size := []byte{0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x6d}
	read := join(request(0, nbd.Read, 0, 512))
	answer := join([]byte{0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0}, []byte("cookie!!"), make([]byte, 512))
	described := func(number uint32) []byte {
		return join(reply(number, 3, join([]byte{0, 0}, size)...), reply(number, 3, blockInfo...), reply(number, 1))
	}
	for name, test := range map[string]struct {
		client, server []byte
		failure        string // error of Serve
	}{
		"export name": {client: join(clientPlus, option(1), read), server: join(size, answer)},
		"export name with zeroes": {client: join([]byte{0, 0, 0, 1}, option(1), read),
			server: join(size, make([]byte, 124), answer)},
		"another export name": {client: join(clientPlus, option(1, 'x')), failure: `unknown export "x"`},
		"abort":               {client: join(clientPlus, option(2)), server: reply(2, 1)},
		"list":                {client: join(clientPlus, option(3), option(2)), server: join(reply(3, 2, 0, 0, 0, 0), reply(3, 1), reply(2, 1))},
		"list with data":      {client: join(clientPlus, option(3, 1), option(2)), server: join(reply(3, invalid), reply(2, 1))},
		"info, then go": {client: join(clientPlus, option(6, 0, 0, 0, 0, 0, 0), option(7, 0, 0, 0, 0, 0, 1, 0, 3), read),
			server: join(described(6), described(7), answer)},
		"go to an unknown export": {client: join(clientPlus, option(7, 0, 0, 0, 1, 'x', 0, 0), option(2)),
			server: join(reply(7, unknown, []byte("the only export has an empty name")...), reply(2, 1))},
		"structured replies and TLS": {client: join(clientPlus, option(8), option(5), option(2)),
			server: join(reply(8, unsupported), reply(5, unsupported), reply(2, 1))},
		"a long option":  {client: join(clientPlus, option(7, make([]byte, 9000)...), option(2)), server: join(reply(7, tooBig), reply(2, 1))},
		"a huge option":  {client: join(clientPlus, []byte("IHAVEOPT"), []byte{0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff}), failure: "4294967295 bytes"},
		"no magic":       {client: join(clientPlus, option(2)[1:], []byte{0}), failure: "has magic"},
		"unknown flags":  {client: []byte{0, 0, 0, 7}, failure: "flags 0x7"},
		"half an option": {client: join(clientPlus, option(7, 0, 0, 0, 0, 0, 0)[:20]), failure: "6 bytes of option 7"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, wait := serve(t, newMemory(1<<20))
			written := make(chan struct{})
			go func() {
				_, _ = conn.Write(test.client) // the server might close before it has read everything
				close(written)
			}()
			got := make([]byte, len(hello)+len(test.server))
			if _, err := io.ReadFull(conn, got); err != nil {
				t.Fatalf("the server sent %q: %v", got, err)
			}
			if want := join(hello, test.server); !bytes.Equal(got, want) {
				t.Errorf("the server sent\n%q, want\n%q", got, want)
			}
			<-written
			conn.Close()
			err := wait()
			if test.failure == "" && err != nil || test.failure != "" && (err == nil || !strings.Contains(err.Error(), test.failure)) {
				t.Errorf("error %v, want %q", err, test.failure)
			}
		})
	}
}

func TestMalformedInfo(t *testing.T) {
	for name, data := range map[string][]byte{
		"nothing":                  {},
		"a name longer than all":   {0xff, 0xff, 0xff, 0xff, 0, 0},
		"a name to the last byte":  {0, 0, 0, 1, 0, 0},
		"requests that are absent": {0, 0, 0, 0, 0, 2, 0, 3},
		"more than it says":        {0, 0, 0, 0, 0, 0, 0},
	} {
		conn, _ := serve(t, newMemory(1<<20))
		go func() { _, _ = conn.Write(join(clientPlus, option(7, data...))) }()
		got := make([]byte, len(hello)+16)
		testkit.Value(io.ReadFull(conn, got))(t)
		if want := reply(7, 1<<31+3)[:16]; !bytes.Equal(got[len(hello):], want) {
			t.Errorf("%s: %q, want %q", name, got[len(hello):], want)
		}
		conn.Close()
	}
}
