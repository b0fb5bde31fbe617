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
	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/sriov/inventory"
)

// loaded is a configuration that was read. It is immutable.
type loaded struct {
	hash     string // of the text: SHA-256, in hexadecimal
	config   inventory.Config
	warnings []strictjson.Problem
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

// reload uses a configuration that has changed. An invalid one changes nothing but
// Check.
func (p *Plugin) reload() {
	p.loading.Lock()
	defer p.loading.Unlock()
	l, err := p.load()
	p.metrics.reads.WithLabelValues(okOrFailed(err)).Inc()
	changed := p.problems.set("configuration", err)
	switch {
	case err != nil && changed:
		p.logger.Error("the configuration cannot be used; the one before stays in force", "error", err)
		return
	case err != nil:
		return
	case changed:
		p.logger.Info("the configuration can be used again", "file", p.cfg.ConfigFile, "hash", l.hash)
	}
	if l.hash != p.newest {
		p.use(l)
	}
}

// use puts a configuration into force. The caller holds loading, or is New.
func (p *Plugin) use(l *loaded) {
	p.newest = l.hash
	for _, w := range l.warnings {
		if w.Kind == inventory.DroppedResource {
			p.logger.Error("resource left out of the configuration", "kind", w.Kind, "warning", w.String())
			continue
		}
		p.logger.Warn("the configuration may not mean what it seems to", "kind", w.Kind, "key", w.Key, "nearest", w.Nearest, "warning", w.String())
	}
	p.metrics.warned(l.warnings)
	p.logger.Info("the configuration is read", "file", p.cfg.ConfigFile, "hash", l.hash, "resources", l.names())
	if p.loaded.Load() == nil {
		p.loaded.Store(l) // the first
	}
	p.loop.Send(l)
}

// watchConfig reads the file again after a change in its directory, as when a
// ConfigMap is replaced, and periodically.
func (p *Plugin) watchConfig(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.awaitConfigChange(ctx); err != nil && ctx.Err() == nil {
			p.logger.Debug("the directory of the configuration is looked at now and then only", "error", err)
		}
		if ctx.Err() == nil {
			p.reload()
		}
		_ = pause(ctx, configPause) // ends with ctx, as the loop does
	}
}

const (
	// configPause is the least time between two reads of the file.
	configPause = 100 * time.Millisecond
	// configPoll is how often it is read while its directory cannot be watched.
	configPoll = 2 * time.Second
)

// awaitConfigChange returns after a change, or after a while.
func (p *Plugin) awaitConfigChange(ctx context.Context) error {
	const changes = inotify.Create | inotify.MovedTo | inotify.Delete | inotify.DeleteSelf | inotify.MoveSelf | unix.IN_CLOSE_WRITE
	return awaitChange(ctx, filepath.Dir(p.cfg.ConfigFile), changes, p.cfg.Interval, min(configPoll, p.cfg.Interval), func() bool {
		text, err := readAtMost(p.cfg.ConfigFile, inventory.MaxConfigSize)
		_, tried := p.hashes()
		return err == nil && Hash(text) != tried
	})
}

// awaitChange returns after a change in a directory, or after a while; if the
// directory cannot be watched, after the time poll and with an error. Changed finds a
// change from before the watch was set.
func awaitChange(ctx context.Context, dir string, changes uint32, while, poll time.Duration, changed func() bool) error {
	deadline := time.Now().Add(while)
	w, err := inotify.New()
	if err == nil {
		defer w.Close()
		_, err = w.Add(dir, changes)
	}
	if err != nil {
		return errors.Join(err, pause(ctx, poll))
	}
	if changed() {
		return nil
	}
	if _, err = w.Read(ctx, deadline, nil); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// hashes returns the hash of the configuration that is, or is about to be, in force,
// and of the last text that was read.
func (p *Plugin) hashes() (newest, tried string) {
	p.loading.Lock()
	defer p.loading.Unlock()
	return p.newest, p.tried
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
