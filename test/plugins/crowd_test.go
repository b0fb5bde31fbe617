package plugins

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// plugin is one listener. All share a server, which identifies them by the
// local address of their connections.
type plugin struct {
	net.Listener
	id         int
	hangs      atomic.Int32 // GetInfo calls left without an answer
	ignores    atomic.Int32 // NotifyRegistrationStatus calls left without an answer
	registered atomic.Bool  // the last reported status

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func (p *plugin) name() string { return fmt.Sprintf("plugin-%d", p.id) }

// Network and String make the plugin its own address.
func (p *plugin) Network() string { return "unix" }
func (p *plugin) String() string  { return p.name() }

func (p *plugin) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	return addressed{c, p}, nil
}

// die closes the listener and all connections, as the end of a process does.
func (p *plugin) die() {
	_ = p.Listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

type addressed struct {
	net.Conn
	p *plugin
}

func (a addressed) Close() error {
	a.p.mu.Lock()
	delete(a.p.conns, a.Conn)
	a.p.mu.Unlock()
	return a.Conn.Close()
}

func (a addressed) LocalAddr() net.Addr { return a.p }

// service implements all plugins.
type service struct {
	registration.UnimplementedRegistrationServer
}

func asked(ctx context.Context) (*plugin, error) {
	if from, found := peer.FromContext(ctx); found {
		if p, is := from.LocalAddr.(*plugin); is {
			return p, nil
		}
	}
	return nil, errors.New("the connection belongs to no plugin")
}

func (service) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	p, err := asked(ctx)
	if err != nil {
		return nil, err
	}
	if p.hangs.Add(-1) >= 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: p.name(), SupportedVersions: []string{"1.0.0"}}, nil
}

func (service) NotifyRegistrationStatus(ctx context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	p, err := asked(ctx)
	if err != nil {
		return nil, err
	}
	if p.ignores.Add(-1) >= 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	p.registered.Store(s.PluginRegistered)
	return &registration.RegistrationStatusResponse{}, nil
}

// crowd is the expected content of the plugins directory.
type crowd struct {
	testing.TB
	*rand.Rand
	dir    string
	most   int // concurrent sockets
	server *grpc.Server

	made   int                // sockets so far
	live   map[string]*plugin // by path
	silent map[string]net.Listener
	dead   map[string]bool // files without a listener
}

func newCrowd(t testing.TB, dir string, most int, random *rand.Rand) *crowd {
	c := &crowd{TB: t, Rand: random, dir: dir, most: most, server: grpc.NewServer(),
		live: map[string]*plugin{}, silent: map[string]net.Listener{}, dead: map[string]bool{}}
	registration.RegisterRegistrationServer(c.server, service{})
	t.Cleanup(func() {
		c.server.Stop()
		for _, l := range c.silent {
			_ = l.Close()
		}
	})
	return c
}

// size returns the number of socket files.
func (c *crowd) size() int { return len(c.live) + len(c.silent) + len(c.dead) }

// step performs one random action of plugins or nodes.
func (c *crowd) step() {
	type act struct {
		weight int
		do     func()
	}
	acts := []act{
		{160, c.come}, {88, c.leave}, {32, c.die}, {24, c.comeSilent}, {40, c.restart}, {24, c.rename}, {16, c.replace},
		{1, c.moveDirectory}, {1, c.removeDirectory},
	}
	if c.size() >= c.most {
		acts = acts[1:2]
	}
	sum := 0
	for _, a := range acts {
		sum += a.weight
	}
	for n := c.IntN(sum); ; acts = acts[1:] {
		if n -= acts[0].weight; n < 0 {
			acts[0].do()
			return
		}
	}
}

// place returns an unused path.
func (c *crowd) place() string {
	dir := c.dir
	switch c.IntN(3) {
	case 1:
		dir = filepath.Join(dir, fmt.Sprintf("d%d", c.IntN(8)))
	case 2:
		dir = filepath.Join(dir, fmt.Sprintf("d%d", c.IntN(8)), "e")
	}
	testkit.Must(c, os.MkdirAll(dir, 0o750))
	for {
		path := filepath.Join(dir, fmt.Sprintf("s%d.sock", c.IntN(4*c.most)))
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return path
		}
	}
}

func (c *crowd) listen(path string) net.Listener {
	c.Helper()
	l := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(c)
	l.SetUnlinkOnClose(false)
	c.made++
	return l
}

// serve starts a plugin; some hang at first.
func (c *crowd) serve(path string) {
	p := &plugin{Listener: c.listen(path), id: c.made, conns: map[net.Conn]bool{}}
	if c.IntN(20) == 0 {
		p.hangs.Store(int32(c.IntN(3)))
	}
	if c.IntN(20) == 0 {
		p.ignores.Store(int32(c.IntN(2)))
	}
	c.live[path] = p
	go func() { _ = c.server.Serve(p) }() // until the listener closes
}

func (c *crowd) come() { c.serve(c.place()) }

func (c *crowd) comeSilent() {
	path := c.place()
	c.silent[path] = c.listen(path)
}

// pick returns a random path of a set, in an order that the seed decides.
func pick[V any](c *crowd, set map[string]V) (path string, found bool) {
	if len(set) == 0 {
		return "", false
	}
	return slices.Sorted(maps.Keys(set))[c.IntN(len(set))], true
}

// any returns a random socket file.
func (c *crowd) any() (path string, found bool) {
	switch c.IntN(8) {
	case 0:
		return pick(c, c.silent)
	case 1:
		return pick(c, c.dead)
	}
	return pick(c, c.live)
}

// forget closes the listener of a path that no longer exists.
func (c *crowd) forget(path string) {
	if p := c.live[path]; p != nil {
		p.die()
	}
	if l := c.silent[path]; l != nil {
		_ = l.Close()
	}
	delete(c.live, path)
	delete(c.silent, path)
	delete(c.dead, path)
}

func (c *crowd) leave() {
	if path, found := c.any(); found {
		testkit.Must(c, os.Remove(path))
		c.forget(path)
	}
}

// die keeps the file.
func (c *crowd) die() {
	if path, found := pick(c, c.live); found {
		c.forget(path)
		c.dead[path] = true
	}
}

// restart replaces a random socket by a new plugin.
func (c *crowd) restart() {
	if path, found := c.any(); found {
		testkit.Must(c, os.Remove(path))
		c.forget(path)
		c.serve(path)
	}
}

// replace does the same atomically.
func (c *crowd) replace() {
	if path, found := c.any(); found {
		c.forget(path)
		hidden := filepath.Join(filepath.Dir(path), ".new")
		c.serve(hidden)
		testkit.Must(c, os.Rename(hidden, path))
		c.moved(hidden, path)
	}
}

func (c *crowd) rename() {
	if path, found := c.any(); found {
		to := c.place()
		testkit.Must(c, os.Rename(path, to))
		c.moved(path, to)
	}
}

// moved renames a path in the sets.
func (c *crowd) moved(from, to string) {
	if p := c.live[from]; p != nil {
		delete(c.live, from)
		c.live[to] = p
	}
	if l := c.silent[from]; l != nil {
		delete(c.silent, from)
		c.silent[to] = l
	}
	if c.dead[from] {
		delete(c.dead, from)
		c.dead[to] = true
	}
}
