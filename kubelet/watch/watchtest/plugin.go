package watchtest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Kind is the type that the suite handles.
const Kind = registration.CSIPlugin

// Script is a plugin's behaviour; the zero value is a good plugin of type Kind
// with its socket's name and no endpoint.
type Script struct {
	Type, Name, Endpoint string
	Versions             []string
	// Called before the n-th answer, from 1; an error is the answer. ctx ends
	// with the caller's timeout.
	GetInfo func(ctx context.Context, n int) error
	Notify  func(ctx context.Context, n int) error
}

// Plugin serves the registration API on a socket.
type Plugin struct {
	registration.UnimplementedRegistrationServer
	Path   string // bound
	label  string
	script Script
	info   *registration.PluginInfo
	log    *journal
	server *grpc.Server
	served chan struct{}
	conns  connections
}

// The file remains after Kill.
func serve(path, label string, script Script, log *journal) (*Plugin, error) {
	l, err := listen(path)
	if err != nil {
		return nil, err
	}
	return serveOn(l, path, label, script, log), nil
}

func serveOn(l net.Listener, path, label string, script Script, log *journal) *Plugin {
	p := &Plugin{
		Path: path, label: label, script: script, log: log, served: make(chan struct{}),
		info: &registration.PluginInfo{
			Type: orElse(script.Type, Kind), Name: orElse(script.Name, label),
			Endpoint: script.Endpoint, SupportedVersions: script.Versions,
		},
	}
	if p.info.SupportedVersions == nil {
		p.info.SupportedVersions = []string{"1.0.0"}
	}
	if script.Name == noName {
		p.info.Name = ""
	}
	p.server = grpc.NewServer()
	registration.RegisterRegistrationServer(p.server, p)
	go func() {
		defer close(p.served)
		_ = p.server.Serve(&tracked{l, &p.conns})
	}()
	return p
}

const noName = "\x00"

func listen(path string) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

func (p *Plugin) end() {
	late := time.AfterFunc(stopTimeout, p.server.Stop)
	p.server.GracefulStop()
	late.Stop()
	<-p.served
}

// stopTimeout bounds the wait for running calls.
const stopTimeout = 10 * time.Second

// Kill ends the plugin like SIGKILL: the socket file remains.
func (p *Plugin) Kill() {
	p.server.Stop()
	<-p.served
}

func (p *Plugin) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	n := p.log.write(call{plugin: p.label, what: "GetInfo"})
	if p.script.GetInfo != nil {
		if err := p.script.GetInfo(ctx, n); err != nil {
			return nil, err
		}
	}
	return p.info, nil
}

func (p *Plugin) NotifyRegistrationStatus(ctx context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	what := fmt.Sprintf("Notify(%v)", status.PluginRegistered)
	if status.Error != "" {
		what = fmt.Sprintf("Notify(%v, %q)", status.PluginRegistered, status.Error)
	}
	n := p.log.write(call{plugin: p.label, what: what})
	if p.script.Notify != nil {
		if err := p.script.Notify(ctx, n); err != nil {
			return nil, err
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func orElse(word, fallback string) string {
	if word == "" {
		return fallback
	}
	return word
}

// HangUp closes every connection but accepts new ones.
func (p *Plugin) HangUp() { p.conns.breakAll() }

type connections struct {
	mu  sync.Mutex
	all []net.Conn
}

func (c *connections) breakAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.all {
		_ = conn.Close()
	}
	c.all = nil
}

type tracked struct {
	net.Listener
	conns *connections
}

func (t *tracked) Accept() (net.Conn, error) {
	conn, err := t.Listener.Accept()
	if err == nil {
		t.conns.mu.Lock()
		t.conns.all = append(t.conns.all, conn)
		t.conns.mu.Unlock()
	}
	return conn, err
}
