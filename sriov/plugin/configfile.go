package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/inotify"
	"github.com/cleatproject/cleat/sriov/inventory"
)

// loaded is a configuration as it was read.
type loaded struct {
	hash     string // of the text: SHA-256, in hexadecimal
	config   inventory.Config
	warnings []inventory.ConfigWarning
}

func (l *loaded) names() []string {
	names := make([]string, 0, len(l.config.Resources))
	for _, r := range l.config.Resources {
		names = append(names, r.FullName())
	}
	return names
}

// Hash is the config_hash of a configuration file with that text.
func Hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func (p *Plugin) load() (*loaded, error) {
	p.tried = ""
	text, err := readAtMost(p.cfg.ConfigFile, inventory.MaxConfigSize)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	l := &loaded{hash: Hash(text)}
	p.tried = l.hash
	l.config, l.warnings, err = inventory.ParseConfig(text, inventory.ParseOptions{Prefix: p.cfg.Prefix, Strict: p.cfg.Strict})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.cfg.ConfigFile, err)
	}
	return l, nil
}

// readAtMost reads a regular file.
func readAtMost(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s (%s, %d bytes) is not a file of at most %d bytes", path, info.Mode().Type(), info.Size(), most)
	}
	return os.ReadFile(path)
}

// reload takes over a configuration that has changed. One that is wrong changes
// nothing, and shows.
func (p *Plugin) reload() {
	p.loading.Lock()
	defer p.loading.Unlock()
	l, err := p.load()
	p.deps.metrics.configured(err)
	news := p.wrong.set("configuration", err)
	switch {
	case err != nil && news:
		p.cfg.Logger.Error("the configuration cannot be used; the one before stays in force", "error", err)
		return
	case err != nil:
		return
	case news:
		p.cfg.Logger.Info("the configuration can be used again", "file", p.cfg.ConfigFile, "hash", l.hash)
	}
	if l.hash != p.newest {
		p.take(l)
	}
}

// take brings a configuration into force. The caller is the only one who does.
func (p *Plugin) take(l *loaded) {
	p.newest = l.hash
	for _, w := range l.warnings {
		if w.Kind == inventory.DroppedResource {
			p.cfg.Logger.Error("resource left out of the configuration", "kind", w.Kind, "warning", w.String())
			continue
		}
		p.cfg.Logger.Warn("the configuration may not mean what it seems to", "kind", w.Kind, "key", w.Key, "nearest", w.Nearest, "warning", w.String())
	}
	p.deps.metrics.warned(l.warnings)
	p.cfg.Logger.Info("the configuration is read", "file", p.cfg.ConfigFile, "hash", l.hash, "resources", l.names())
	if p.loaded.Load() == nil {
		p.loaded.Store(l) // until the gate has heard of it, nothing uses it
	}
	p.put(order{config: l})
}

// watchConfig reads the file again when something changes in its directory, as
// when a ConfigMap is replaced, and with every scan that nobody asked for.
func (p *Plugin) watchConfig(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.awaitConfigChange(ctx); err != nil && ctx.Err() == nil {
			p.cfg.Logger.Debug("the directory of the configuration is looked at now and then only", "error", err)
		}
		if ctx.Err() == nil {
			p.reload()
		}
		_ = pause(ctx, configPause) // ends with ctx, as the loop does
	}
}

const (
	// configPause lies between two looks at the file, so that one which is
	// written all the time costs little.
	configPause = 100 * time.Millisecond
	// configLook is how often it is looked at while its directory cannot be
	// watched.
	configLook = 2 * time.Second
)

// awaitConfigChange returns after a change, or after a while.
func (p *Plugin) awaitConfigChange(ctx context.Context) error {
	deadline := time.Now().Add(p.cfg.Interval)
	w, err := inotify.New()
	if err == nil {
		defer w.Close()
		_, err = w.Add(filepath.Dir(p.cfg.ConfigFile), inotify.Create|inotify.MovedTo|inotify.Delete|inotify.DeleteSelf|inotify.MoveSelf|unix.IN_CLOSE_WRITE)
	}
	if err != nil {
		return errors.Join(err, pause(ctx, min(configLook, p.cfg.Interval)))
	}
	// A change before the watch was set shows now.
	if text, err := readAtMost(p.cfg.ConfigFile, inventory.MaxConfigSize); err == nil && Hash(text) != p.lastTried() {
		return nil
	}
	_, err = w.Read(ctx, deadline, nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// newestHash is that of the configuration which is about to be in force.
func (p *Plugin) newestHash() string {
	p.loading.Lock()
	defer p.loading.Unlock()
	return p.newest
}

func (p *Plugin) lastTried() string {
	p.loading.Lock()
	defer p.loading.Unlock()
	return p.tried
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
