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

	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/linux/inotify"
	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/sriov/inventory"
)

// loaded is an immutable configuration.
type loaded struct {
	hash     string // SHA-256 of the file
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

// Hash returns a configuration's config_hash.
func Hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func (p *Plugin) load() (*loaded, error) {
	p.lastRead = ""
	text, err := readAtMost(p.cfg.ConfigFile, inventory.MaxConfigSize)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	l := &loaded{hash: Hash(text)}
	p.lastRead = l.hash
	l.config, l.warnings, err = inventory.ParseConfig(text, inventory.ParseOptions{Prefix: p.cfg.Prefix, Strict: p.cfg.Strict})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.cfg.ConfigFile, err)
	}
	return l, nil
}

func readAtMost(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s is not a regular file of at most %[4]d bytes (type %[2]s, %[3]d bytes)", path, info.Mode().Type(), info.Size(), most)
	}
	return os.ReadFile(path)
}

// An invalid configuration only changes the result of Check.
func (p *Plugin) reload() {
	p.loading.Lock()
	defer p.loading.Unlock()
	l, err := p.load()
	p.metrics.reads.WithLabelValues(okOrFailed(err)).Inc()
	changed := p.problems.set("configuration", err)
	switch {
	case err != nil && changed:
		p.logger.Error("invalid configuration, keeping the previous one", "err", err)
		return
	case err != nil:
		return
	case changed:
		p.logger.Info("configuration is valid again", "path", p.cfg.ConfigFile, "hash", l.hash)
	}
	if l.hash != p.newest {
		p.use(l)
	}
}

// The caller holds loading, or is New.
func (p *Plugin) use(l *loaded) {
	p.newest = l.hash
	for _, w := range l.warnings {
		if w.Kind == inventory.DroppedResource {
			p.logger.Error("resource left out of the configuration", "kind", w.Kind, "warning", w.String())
			continue
		}
		p.logger.Warn("probable mistake in configuration", "kind", w.Kind, "key", w.Key, "nearest", w.Nearest, "warning", w.String())
	}
	p.metrics.warned(l.warnings)
	p.logger.Info("configuration loaded", "path", p.cfg.ConfigFile, "hash", l.hash, "resources", l.names())
	p.step(func(now time.Time) {
		p.loaded.Store(l)
		p.rescan(now)
		p.gate.Configure(now, l.hash, l.names())
	})
}

// watchConfig reads the file after changes in its directory, such as a
// ConfigMap update, and periodically.
func (p *Plugin) watchConfig(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.awaitConfigChange(ctx); err != nil && ctx.Err() == nil {
			p.logger.Debug("cannot watch configuration directory, polling", "err", err)
		}
		if ctx.Err() == nil {
			p.reload()
		}
		_ = backoff.Sleep(ctx, configPause)
	}
}

const (
	// configPause is the minimum between reads.
	configPause = 100 * time.Millisecond
	// configPoll applies while the directory cannot be watched.
	configPoll = 2 * time.Second
)

func (p *Plugin) awaitConfigChange(ctx context.Context) error {
	const changes = inotify.Create | inotify.MovedTo | inotify.Delete | inotify.DeleteSelf | inotify.MoveSelf | unix.IN_CLOSE_WRITE
	return awaitChange(ctx, filepath.Dir(p.cfg.ConfigFile), changes, p.cfg.Interval, min(configPoll, p.cfg.Interval), func() bool {
		text, err := readAtMost(p.cfg.ConfigFile, inventory.MaxConfigSize)
		_, tried := p.hashes()
		return err == nil && Hash(text) != tried
	})
}

// awaitChange returns after a change or the time while. If the directory cannot
// be watched, after poll with an error. changed detects one from before the
// watch was set.
func awaitChange(ctx context.Context, dir string, changes uint32, while, poll time.Duration, changed func() bool) error {
	deadline := time.Now().Add(while)
	w, err := inotify.New()
	if err == nil {
		defer w.Close()
		_, err = w.Add(dir, changes)
	}
	if err != nil {
		return errors.Join(err, backoff.Sleep(ctx, poll))
	}
	if changed() {
		return nil
	}
	if _, err = w.Read(ctx, deadline, nil); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

func (p *Plugin) hashes() (newest, tried string) {
	p.loading.Lock()
	defer p.loading.Unlock()
	return p.newest, p.lastRead
}
