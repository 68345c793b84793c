// How far the softmax of one row of logits is from that of another, and the gradient. See
// cpu_kernels.h.
//
// With p the student's probabilities, q the teacher's and m = (1 - beta) p + beta q, it is
//   beta KL(q | m) + (1 - beta) KL(p | m),
// but KL(q | p) with a beta of 0 and KL(p | q) with one of 1. The gradient by the student's logits
// is p (g - sum of p g), with g that by p, up to a constant.
#pragma once

#include "worker/kernels/vec.h"
#include "worker/kernels/vec_softmax.h"

namespace tessera {
namespace {

// The softmax of x is exp(x - largest) * scale.
struct RowSoftmax {
  float largest, scale;
  double log_sum;  // of the exponentials of x
};

template <int kLanes, typename T>
RowSoftmax row_softmax(const T* logits, int64_t width) {
  using V = Vec<kLanes>;
  auto largest = V::all(-__builtin_inff());
  V::each(width, [&](int64_t i, int64_t count) {
    largest = V::max(largest, V::get(logits + i, count, -__builtin_inff()));
  });
  const float shift = V::largest(largest);
  double sum = 0;
  for (int64_t begin = 0; begin < width; begin += kSumBlock) {
    const int64_t length = width - begin < kSumBlock ? width - begin : kSumBlock;
    sum += V::sum(V::reduce(length, [&](auto part, int64_t i, int64_t count) {
      const auto shifted = V::get(logits + begin + i, count, shift) - shift;
      return part + V::first(V::exp(shifted), count);
    }));
  }
  return {shift, static_cast<float>(1 / sum), shift + __builtin_log(sum)};
}

// Some entries of the vocabulary.
template <int kLanes>
struct Entries {
  typename Vec<kLanes>::Float p, q;
  typename Vec<kLanes>::Float log_ratio;  // log p - log q
};

template <int kLanes, typename T>
class RowPair {
 public:
  RowPair(const T* student, const T* teacher, int64_t width)
      : student_(student),
        teacher_(teacher),
        p_(row_softmax<kLanes>(student, width)),
        q_(row_softmax<kLanes>(teacher, width)),
        log_sums_(static_cast<float>(p_.log_sum - q_.log_sum)) {}

  // Those from i on; p and q of what is behind `count` of them are 0.
  Entries<kLanes> at(int64_t i, int64_t count) const {
    using V = Vec<kLanes>;
    const auto s = V::get(student_ + i, count, p_.largest);
    const auto t = V::get(teacher_ + i, count, q_.largest);
    return {V::first(V::exp(s - p_.largest) * p_.scale, count),
            V::first(V::exp(t - q_.largest) * q_.scale, count), (s - t) - log_sums_};
  }

 private:
  const T *student_, *teacher_;
  RowSoftmax p_, q_;
  float log_sums_;
};

// Of the divergence, and of the sum of p g that its gradient needs.
template <int kLanes>
struct DivergenceTerms {
  typename Vec<kLanes>::Float divergence, weighted;
};

template <int kLanes>
struct TeacherKl {  // KL(q | p)
  using V = Vec<kLanes>;
  DivergenceTerms<kLanes> terms(const Entries<kLanes>& e) const {
    return {-e.q * e.log_ratio, V::all(0.0f)};
  }
  auto gradient(const Entries<kLanes>& e, float) const { return e.p - e.q; }
};

template <int kLanes>
struct StudentKl {  // KL(p | q)
  DivergenceTerms<kLanes> terms(const Entries<kLanes>& e) const {
    const auto term = e.p * e.log_ratio;
    return {term, term};
  }
  auto gradient(const Entries<kLanes>& e, float mean) const { return e.p * (e.log_ratio - mean); }
};

template <int kLanes>
struct MixtureKl {
  using V = Vec<kLanes>;
  float of_teacher, of_student;  // beta, 1 - beta

  // log m less the larger of log p and log q; never above 0. Entries nearly as likely to both are
  // where the terms of a row cancel: nothing is rounded to a number near 1 there.
  auto log_mixture(const Entries<kLanes>& e) const {
    const auto is_less = e.log_ratio < 0.0f;  // p than q
    const auto distance = is_less ? e.log_ratio : -e.log_ratio;
    const auto share = is_less ? V::all(of_student) : V::all(of_teacher);
    return V::log1p(share * V::expm1(distance));
  }
  // log p - log m
  auto student_ratio(const Entries<kLanes>& e) const {
    return (e.log_ratio < 0.0f ? e.log_ratio : V::all(0.0f)) - log_mixture(e);
  }
  DivergenceTerms<kLanes> terms(const Entries<kLanes>& e) const {
    const auto zero = V::all(0.0f), mixture = log_mixture(e);
    const auto of_p = e.p * ((e.log_ratio < 0.0f ? e.log_ratio : zero) - mixture);
    const auto of_q = e.q * ((e.log_ratio < 0.0f ? zero : -e.log_ratio) - mixture);
    return {of_student * of_p + of_teacher * of_q, of_p};
  }
  auto gradient(const Entries<kLanes>& e, float mean) const {
    return of_student * e.p * (student_ratio(e) - mean);
  }
};

template <int kLanes, typename T, typename Kind>
float row_divergence(T* gradient, const RowPair<kLanes, T>& rows, const Kind& kind,
                     float of_divergence, int64_t width) {
  using V = Vec<kLanes>;
  double divergence = 0, weighted = 0;
  for (int64_t begin = 0; begin < width; begin += kSumBlock) {
    const int64_t length = width - begin < kSumBlock ? width - begin : kSumBlock;
    auto weighted_part = V::all(0.0f);
    divergence += V::sum(V::reduce(length, [&](auto part, int64_t i, int64_t count) {
      const DivergenceTerms<kLanes> terms = kind.terms(rows.at(begin + i, count));
      weighted_part += terms.weighted;
      return part + terms.divergence;
    }));
    weighted += V::sum(weighted_part);
  }
  if (gradient != nullptr) {
    const auto mean = static_cast<float>(weighted);
    V::each(width, [&](int64_t i, int64_t count) {
      V::put(gradient + i, of_divergence * kind.gradient(rows.at(i, count), mean), count);
    });
  }
  return static_cast<float>(divergence);
}

template <int kLanes, typename T>
float divergence(T* gradient, const T* student, const T* teacher, double beta, float of_divergence,
                 int64_t width) {
  const RowPair<kLanes, T> rows(student, teacher, width);
  if (beta == 0) return row_divergence(gradient, rows, TeacherKl<kLanes>{}, of_divergence, width);
  if (beta == 1) return row_divergence(gradient, rows, StudentKl<kLanes>{}, of_divergence, width);
  const MixtureKl<kLanes> mixture{static_cast<float>(beta), static_cast<float>(1 - beta)};
  return row_divergence(gradient, rows, mixture, of_divergence, width);
}

}  // namespace
}  // namespace tessera
