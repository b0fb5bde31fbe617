package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/watch"
)

const (
	// defaultPlugins is below /run, so that a reboot removes unserved sockets.
	defaultPlugins = "/run/cleat/plugins"
	defaultHost    = "unix:///run/cleat/host/host.sock"
)

func newHostCommand() *cobra.Command {
	return serving(&cobra.Command{
		Use:   "host",
		Short: "Run a plugin host: discover and register plugins like a kubelet",
		Long: `Discovers plugins by their sockets below a directory, registers them and notifies
them, exactly as the kubelet does: CSI drivers, device plugins, DRA drivers. It is
for machines without a kubelet, and for tests of plugins. Query it with cleat
plugins; cleat volume --driver finds a CSI driver by name through it.

On a terminal it shows a table of all plugins, with the reasons of failed
registrations; elsewhere it writes a line when a plugin is registered, fails or is
removed. -o json streams every state change as a line of JSON.

Device plugins call Register on kubelet.sock in --device-plugins-dir.

Plugins that expect a kubelet have its directory built in: use --plugins-dir
/var/lib/kubelet/plugins_registry for them. A directory has a single host: cleat
host refuses to start if another cleat host, or a kubelet, watches the directory.`,
		Example: `  sudo cleat host
  sudo cleat host --plugins-dir /var/lib/kubelet/plugins_registry
  sudo cleat host --grace 30s -o json | jq -c '[.kind, .plugin.name, .plugin.phase]'`,
		Args: noArgs,
	}, &hostServer{})
}

func (h *hostServer) addFlags(fs *pflag.FlagSet) {
	s := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	s.StringVar(&h.pluginsDir, "plugins-dir", defaultPlugins, "directory in which plugins create their sockets; created if missing")
	s.StringVar(&h.devicesDir, "device-plugins-dir", "", "directory of kubelet.sock and of device plugins that call Register on it; by default device-plugins next to --plugins-dir. Created if missing; sockets in it are removed at startup, as by the kubelet")
	s.StringSliceVar(&h.pluginTypes, "plugin-type", nil, "additional plugin type to register, besides "+strings.Join(knownTypes(), ", ")+"; can be repeated")
	s.BoolVar(&h.besideKubelet, "beside-kubelet", false, "start even if a kubelet registers the plugins of this directory; each plugin is then notified twice")
	h.AddAllowUIDs(s, "allow-uid", "register only plugins that run as root or as these user IDs; by default those of all users")
	s.DurationVar(&h.grace, "grace", 0, "deregister a plugin when its socket or its endpoint has been unserved for this time; 0: only when the socket is removed, as the kubelet")
	s.BoolVar(&h.deregister, "deregister-on-exit", false, "deregister all plugins at shutdown; by default they stay registered, as with the kubelet")
	s.StringVar(&h.Endpoint, "socket", defaultHost, "UNIX socket of the query API for cleat plugins and other clients, in its own directory")
	h.AddFlags(s, server.Defaults{SocketGroup: true})
	s.Lookup("log-level").Usage += "; error while the table is shown"
	fs.AddFlagSet(s)
	// CLEAT_OUTPUT is for the client commands, which have other formats.
	fs.StringVarP(&h.output, "output", "o", "table", "output: table, json (a line per state change), or none")
	cli.Enumerate(fs, "output", hostOutputs()...)
}

func hostOutputs() []string { return []string{"table", "json", "none"} }

// Complete derives settings and refuses those that cannot work.
func (h *hostServer) Complete() error {
	h.devicesDir = cmp.Or(h.devicesDir, filepath.Join(filepath.Dir(h.pluginsDir), "device-plugins"))
	switch {
	case !slices.Contains(hostOutputs(), h.output):
		return fmt.Errorf("--output %q is unknown: use table, json or none", h.output)
	case !filepath.IsAbs(h.pluginsDir) || filepath.Clean(h.pluginsDir) != h.pluginsDir:
		return fmt.Errorf("--plugins-dir %q is not an absolute, clean path such as %s", h.pluginsDir, defaultPlugins)
	case h.pluginsDir == "/":
		return fmt.Errorf("--plugins-dir / contains every socket of the machine: use a directory for plugins only, such as %s", defaultPlugins)
	case !filepath.IsAbs(h.devicesDir) || filepath.Clean(h.devicesDir) != h.devicesDir || h.devicesDir == "/" || h.devicesDir == h.pluginsDir:
		return fmt.Errorf("--device-plugins-dir %q is not an absolute, clean path different from --plugins-dir", h.devicesDir)
	case h.grace < 0:
		return fmt.Errorf("--grace %s is negative: use 0 for no grace period", h.grace)
	}
	for _, kind := range h.pluginTypes {
		if kind == "" || slices.Contains(knownTypes(), kind) {
			return fmt.Errorf("--plugin-type %q: use a type other than %s, which are always registered", kind, strings.Join(knownTypes(), ", "))
		}
	}
	socket, err := unixsock.ParseEndpoint(h.Endpoint)
	if err != nil {
		return fmt.Errorf("--socket: %w", err)
	}
	h.StatusSocket = filepath.Join(filepath.Dir(socket), server.StatusName) // a host has no state directory
	if terminal, ok := h.Out.(*os.File); ok && h.output == "table" && cli.IsTerminal(h.Out) {
		h.screen = cli.NewScreen(terminal)
		if cli.IsTerminal(h.Logs) {
			h.Logs = h.screen
		}
		if !h.IsSet("log-level") { // the table shows other events
			h.LogLevel = "error"
		}
	}
	return nil
}

// checkPeer implements --allow-uid; nil allows all users.
func (h *hostServer) checkPeer() func(watch.Peer) error {
	if len(h.AllowUIDs) == 0 {
		return nil
	}
	return func(p watch.Peer) error {
		if p.UID == 0 || slices.Contains(h.AllowUIDs, uint(p.UID)) {
			return nil
		}
		return fmt.Errorf("the socket is served by user %d (process %d), but only root and the users of --allow-uid are allowed", p.UID, p.PID)
	}
}
