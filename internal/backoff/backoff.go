// Package backoff pauses between attempts.
package backoff

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"
)

// Sleep waits. It returns the cause of the end of ctx if that has ended.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// Backoff has pauses that double from First to Most.
type Backoff struct {
	First, Most time.Duration
	Jitter      bool // pauses are shorter by up to a half

	next time.Duration // 0: First
}

// Pause returns the next pause, without jitter.
func (b *Backoff) Pause() time.Duration { return min(cmp.Or(b.next, b.First), b.Most) }

// Wait pauses, as Sleep.
func (b *Backoff) Wait(ctx context.Context) error {
	pause := b.Pause()
	b.next = min(2*pause, b.Most)
	if b.Jitter {
		pause = pause/2 + rand.N(pause/2+1)
	}
	return Sleep(ctx, pause)
}

// Reset makes First the next pause.
func (b *Backoff) Reset() { b.next = 0 }
