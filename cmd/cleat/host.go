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
	// defaultPlugins is gone with the machine's power, and with it the sockets
	// that nobody serves any more.
	defaultPlugins = "/run/cleat/plugins"
	defaultHost    = "unix:///run/cleat/host/host.sock"
)

func newHostCommand() *cobra.Command {
	return serving(&cobra.Command{
		Use:   "host",
		Short: "Find and register plugins, as a kubelet does",
		Long: `Finds the plugins that create a socket below a directory, registers them and
notifies them, exactly as the kubelet does: CSI drivers, device plugins, DRA
drivers. It is for machines without a kubelet, and for tests of plugins. Query it
with cleat plugins; cleat volume --driver finds a CSI driver through it by name.

On a terminal it shows a table of all plugins, with reasons for those that are not
registered; elsewhere it writes a line when one is registered, fails or goes.
-o json streams every step as a line of JSON.

Device plugins that call Register find kubelet.sock in --device-plugins-dir.

Plugins that expect a kubelet have its directory built in: give them
--plugins-dir /var/lib/kubelet/plugins_registry. A directory has one host: it
refuses to start beside another cleat host, or a kubelet that watches the
directory.`,
		Example: `  sudo cleat host
  sudo cleat host --plugins-dir /var/lib/kubelet/plugins_registry
  sudo cleat host --grace 30s -o json | jq -c '[.kind, .plugin.name, .plugin.phase]'`,
		Args: exactlyNone,
	}, &hostServer{})
}

func (h *hostServer) addFlags(fs *pflag.FlagSet) {
	s := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	s.StringVar(&h.pluginsDir, "plugins-dir", defaultPlugins, "directory below which plugins put their sockets; made when missing")
	s.StringVar(&h.devicesDir, "device-plugins-dir", "", "directory of device plugins that call Register on its kubelet.sock; by default device-plugins beside --plugins-dir. Made when missing; sockets in it are removed at the start, as by the kubelet")
	s.StringSliceVar(&h.pluginTypes, "plugin-type", nil, "register plugins of this type too, besides "+strings.Join(knownTypes(), ", ")+"; may be repeated")
	s.BoolVar(&h.besideKubelet, "beside-kubelet", false, "start also when a kubelet registers the plugins of this directory; each plugin then gets two answers")
	h.AddAllowUIDs(s, "allow-uid", "register only plugins that root or these users serve; anybody's when not given")
	s.DurationVar(&h.grace, "grace", 0, "deregister a plugin when nobody has answered on its socket for so long; 0: only when the socket goes, as the kubelet")
	s.BoolVar(&h.deregister, "deregister-on-exit", false, "deregister all plugins at the end; without it they are left as they are, as by the kubelet")
	s.StringVar(&h.Endpoint, "socket", defaultHost, "UNIX socket on which cleat plugins and others may ask, in a directory of its own")
	h.AddFlags(s, server.Defaults{SocketGroup: true})
	s.Lookup("log-level").Usage += "; error where the table is shown"
	fs.AddFlagSet(s)
	// CLEAT_OUTPUT is for the client commands, which have other formats.
	fs.StringVarP(&h.output, "output", "o", "table", "table, json (a line for each step), or none")
}

// Complete derives settings from others, and refuses those that cannot work.
func (h *hostServer) Complete() error {
	h.devicesDir = cmp.Or(h.devicesDir, filepath.Join(filepath.Dir(h.pluginsDir), "device-plugins"))
	switch {
	case !slices.Contains([]string{"table", "json", "none"}, h.output):
		return fmt.Errorf("--output %q: use table, json or none", h.output)
	case !filepath.IsAbs(h.pluginsDir) || filepath.Clean(h.pluginsDir) != h.pluginsDir:
		return fmt.Errorf("--plugins-dir %q must be an absolute, clean path, as %s", h.pluginsDir, defaultPlugins)
	case h.pluginsDir == "/":
		return fmt.Errorf("--plugins-dir / holds every socket of the machine: give a directory that is for plugins, as %s", defaultPlugins)
	case !filepath.IsAbs(h.devicesDir) || filepath.Clean(h.devicesDir) != h.devicesDir || h.devicesDir == "/" || h.devicesDir == h.pluginsDir:
		return fmt.Errorf("--device-plugins-dir %q must be an absolute, clean path, and another directory than --plugins-dir", h.devicesDir)
	case h.grace < 0:
		return fmt.Errorf("--grace %s is negative; 0 is none", h.grace)
	}
	for _, kind := range h.pluginTypes {
		if kind == "" || slices.Contains(knownTypes(), kind) {
			return fmt.Errorf("--plugin-type %q: give a type other than %s, which are registered in any case", kind, strings.Join(knownTypes(), ", "))
		}
	}
	if _, err := unixsock.ParseEndpoint(h.Endpoint); err != nil {
		return fmt.Errorf("--socket: %w", err)
	}
	if terminal, ok := h.Out.(*os.File); ok && h.output == "table" && cli.IsTerminal(h.Out) {
		h.screen = cli.NewScreen(terminal)
		if cli.IsTerminal(h.Logs) {
			h.Logs = h.screen
		}
		if !h.IsSet("log-level") { // the table shows the rest
			h.LogLevel = "error"
		}
	}
	return nil
}

// checkPeer refuses plugins that other users serve than those of --allow-uid; nil:
// anybody can.
func (h *hostServer) checkPeer() func(watch.Peer) error {
	if len(h.AllowUIDs) == 0 {
		return nil
	}
	return func(p watch.Peer) error {
		if p.UID == 0 || slices.Contains(h.AllowUIDs, uint(p.UID)) {
			return nil
		}
		return fmt.Errorf("user %d serves the socket (process %d), and only root and users of --allow-uid may", p.UID, p.PID)
	}
}
