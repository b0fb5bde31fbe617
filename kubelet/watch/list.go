package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// List returns the status of every socket, sorted by path.
func (h *Host) List() []Status {
	_, all := h.Snapshot()
	return all
}

// Snapshot returns List and the serial of the last event in it.
func (h *Host) Snapshot() (serial uint64, all []Status) {
	h.mu.Lock()
	all = make([]Status, 0, len(h.paths))
	for _, p := range h.paths {
		all = append(all, p.now.status)
	}
	serial = h.hub.last()
	h.mu.Unlock()
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Socket, b.Socket) })
	return serial, all
}

// Find returns the sockets whose plugin name, path or file name is word.
func (h *Host) Find(word string) []Status {
	return slices.DeleteFunc(h.List(), func(s Status) bool { return !s.is(word) })
}

func (s Status) is(word string) bool {
	return s.Name == word && word != "" || s.Socket == word || filepath.Base(s.Socket) == word
}

// Health returns nil while the host sees every socket below the directory come
// and go. It can be called at any time.
func (h *Host) Health() error {
	h.life.Lock()
	defer h.life.Unlock()
	switch h.state {
	case fresh:
		return errors.New("the plugin host is not started")
	case closed:
		return ErrClosed
	}
	return h.finder.Health()
}

// Wait waits until a plugin is registered and not dead; an empty kind is any type. If ctx
// ends first, the error has the plugin's state.
func (h *Host) Wait(ctx context.Context, kind, name string) (Status, error) {
	is := func(s Status) bool {
		return s.Phase == Registered && !s.Dead && s.Name == name && (kind == "" || s.Type == kind)
	}
	following, leave := context.WithCancel(ctx)
	defer leave() // also if events is not ranged over
	events := h.Subscribe(following)
	current := func() (Status, bool) {
		all := h.List()
		if i := slices.IndexFunc(all, is); i >= 0 {
			return all[i], true
		}
		return Status{}, false
	}
	if s, ok := current(); ok {
		return s, nil
	}
	for e := range events {
		if is(e.Status) {
			return e.Status, nil
		}
		if e.Lost {
			if s, ok := current(); ok {
				return s, nil
			}
		}
	}
	err := ctx.Err()
	if err == nil {
		err = ErrClosed
	}
	_, why := h.Why(name)
	return Status{}, fmt.Errorf("no plugin %s is registered: %s: %w", name, why, err)
}

// Why describes the state of a name or socket for users, also if it is unknown.
func (h *Host) Why(word string) (found []Status, text string) {
	found = h.Find(word)
	if len(found) == 0 { // of a plugin that ended after a refusal
		refused := h.refusalsOf(word)
		for _, r := range refused {
			found = append(found, h.Find(r.Socket)...)
		}
		if len(refused) > 0 && len(found) == 0 {
			return nil, fmt.Sprintf("%s, and its socket %s was removed since; %s", refused[0], refused[0].Socket, h.unknown(word))
		}
	}
	if len(found) == 0 {
		return nil, h.unknown(word)
	}
	lines := make([]string, len(found))
	for i, s := range found {
		lines[i] = s.describe(time.Now())
	}
	return found, strings.Join(lines, "\n")
}

func (s Status) describe(now time.Time) string {
	subject := s.Socket
	if s.Name != "" || s.Type != "" {
		subject = fmt.Sprintf("%s %s at %s", s.Type, s.Name, s.Socket)
	}
	ago := now.Sub(s.Since).Round(time.Millisecond)
	switch {
	case s.Phase == Registered && s.Dead:
		return fmt.Sprintf("%s is registered and dead: %s", subject, s.Reason)
	case s.Phase == Registered:
		return fmt.Sprintf("%s is registered since %s, endpoint %s", subject, s.Since.Format(time.RFC3339), s.Endpoint)
	case s.Phase == Failed:
		return fmt.Sprintf("%s is not registered, it failed %d times, the last time %s ago when %s: %s. Likely cause: %s. Next try in %s",
			subject, s.Attempts, ago, s.Step, s.Error, s.Reason, max(s.NextTry.Sub(now), 0).Round(time.Millisecond))
	case s.Error != "":
		return fmt.Sprintf("%s is %s for %s; before that, when %s: %s. Likely cause: %s", subject, s.Phase, ago, s.Step, s.Error, s.Reason)
	}
	return fmt.Sprintf("%s is %s for %s", subject, s.Phase, ago)
}

func (h *Host) unknown(word string) string {
	if err := h.Health(); err != nil {
		return fmt.Sprintf("the directory %s is only partly visible: %v", h.o.Dir, err)
	}
	if !strings.Contains(word, "/") {
		beside := filepath.Join(h.o.Dir, word)
		if _, err := os.Lstat(beside); err != nil {
			return fmt.Sprintf("no socket below %s has the name %q or announces it: check that the plugin runs and registers in this directory", h.o.Dir, word)
		}
		word = beside
	}
	rel, err := filepath.Rel(h.o.Dir, word)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return fmt.Sprintf("%s is not below %s, the directory of this host", word, h.o.Dir)
	}
	if rel == "." {
		return word + " is the directory of this host itself"
	}
	for part := range strings.SplitSeq(rel, "/") {
		if strings.HasPrefix(part, ".") {
			return fmt.Sprintf("%s is ignored because %s begins with a dot; a plugin can create its socket under such a name and rename it when it is ready", word, part)
		}
	}
	return unseen(h.o.Dir, rel)
}

// unseen describes a path that should have been discovered.
func unseen(dir, rel string) string {
	path := dir
	for part := range strings.SplitSeq(rel, "/") {
		path = filepath.Join(path, part)
		info, err := os.Lstat(path)
		last := len(path) == len(filepath.Join(dir, rel))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return path + " does not exist"
		case err != nil:
			return err.Error()
		case info.Mode().Type() == fs.ModeSymlink && !last:
			return path + " is a symbolic link to a directory; such links are not followed"
		case !last:
			continue
		}
		if to, err := os.Stat(path); err == nil && to.Mode().Type() == fs.ModeSocket {
			return path + " has just appeared"
		}
		return fmt.Sprintf("%s is %s, not a socket", path, kindOf(info.Mode()))
	}
	return path + " has just been removed"
}

func kindOf(mode fs.FileMode) string {
	switch mode.Type() {
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a symbolic link that does not point to a socket"
	case fs.ModeNamedPipe:
		return "a pipe"
	case 0:
		return "a regular file"
	}
	return "a device"
}
