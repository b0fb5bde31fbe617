package cephtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// Site describes a cluster for programs in guests.
type Site struct {
	Monitors  []netip.AddrPort
	User, Key string
	Pool, FS  string
	Server    string // address of Serve
}

// ReadSite reads a Site from a file (JSON).
func ReadSite(path string) (s Site, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

type answer struct{ Result, Error string }

// Ask has the host change the cluster: see Serve.
func (s Site) Ask(t testing.TB, call, name string, size int64) string {
	t.Helper()
	conn := testkit.Value(net.Dial("tcp", s.Server))(t)
	defer conn.Close()
	testkit.Value(fmt.Fprintln(conn, call, name, size))(t)
	line := testkit.Value(bufio.NewReader(conn).ReadBytes('\n'))(t)
	var a answer
	testkit.Must(t, json.Unmarshal(line, &a))
	if a.Error != "" {
		t.Fatalf("%s %s: %s", call, name, a.Error)
	}
	return a.Result
}

// Serve answers calls of Site.Ask, one per connection, until the test ends. It
// returns its address.
func Serve(t testing.TB, at netip.Addr, change func(call, name string, size int64) (string, error)) string {
	t.Helper()
	listener := testkit.Value(net.Listen("tcp", netip.AddrPortFrom(at, 0).String()))(t)
	testkit.Go(t, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return nil
			}
			var a answer
			if a.Result, err = serve(conn, change); err != nil {
				a.Error = err.Error()
			}
			_ = json.NewEncoder(conn).Encode(a)
			_ = conn.Close()
		}
	})
	return listener.Addr().String()
}

func serve(conn net.Conn, change func(call, name string, size int64) (string, error)) (string, error) {
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", err
	}
	words := strings.Fields(line)
	if len(words) != 3 {
		return "", errors.New("the call is not CALL NAME SIZE")
	}
	size, err := strconv.ParseInt(words[2], 10, 64)
	if err != nil {
		return "", err
	}
	return change(words[0], words[1], size)
}
